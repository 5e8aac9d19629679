"""Every error that culet raises on purpose.

    CuletError                  base of all; `exit_code` is what the command line returns
    |- UsageError               the caller asked for something that makes no sense (2)
    |  `- RequestError          one parameter of one request is out of range (2)
    |- ModelFileError           a file is damaged, incomplete or not what it claims to be (3)
    |  `- UnsupportedModelError the file is sound, but culet does not serve it (3)
    |- CapacityError            the model or request does not fit in memory or context (1)
    `- BackendError             a backend is not built, not installed or has failed (1)

A message is one sentence that names the file, key or field, the value found and the value allowed.
"""

from __future__ import annotations

from typing import ClassVar


class CuletError(Exception):
    """Base class of all errors that culet raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(CuletError):
    """Options or arguments that contradict each other or do not exist."""

    exit_code = 2


class RequestError(UsageError):
    """A request parameter is out of range; `field` names it.

    Attributes:
        field: the name of the parameter, as the caller spelled it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ModelFileError(CuletError):
    """A model file is damaged, incomplete, hostile or not a model.

    The message may quote the file, so it is made one line of printable text of bounded length.
    """

    exit_code = 3

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


class UnsupportedModelError(ModelFileError):
    """A sound file whose architecture, type or scheme culet does not serve."""


class CapacityError(CuletError):
    """Something does not fit: memory, context length, queue."""


class BackendError(CuletError):
    """A compute backend is missing or cannot do what was asked."""


_MAX_MESSAGE_CHARS = 1000


def _one_line(text: str) -> str:
    """Control characters could move a terminal's cursor or forge a line of a log; escape them."""
    begin = text[:_MAX_MESSAGE_CHARS]
    escaped = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in begin)
    if len(text) <= _MAX_MESSAGE_CHARS and len(escaped) <= _MAX_MESSAGE_CHARS:
        return escaped
    return f"{escaped[:_MAX_MESSAGE_CHARS]}..."
