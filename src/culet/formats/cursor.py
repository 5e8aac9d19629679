"""A position in a mapped file that only moves over bytes that are there. Knows no format."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from culet.errors import ModelFileError
from culet.formats.mapped import FileBytes


class Cursor:
    """Reads a file from its beginning; every length is compared with what is left first.

    All methods take `what`, the name of the thing that is read, for the `ModelFileError` that they
    raise where the file ends too early.
    """

    def __init__(self, file: FileBytes) -> None:
        self.file = file
        self.position = 0

    @property
    def num_left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.file.size - self.position

    def take(self, num_bytes: int, what: str) -> NDArray[np.uint8]:
        """The next bytes as a view of the file."""
        if num_bytes > self.num_left:
            raise self.error(
                f"cut within {what}: {num_bytes} bytes are needed, {self.num_left} are left"
            )
        start = self.position
        self.position += num_bytes
        return self.file.data[start : self.position]

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what).tobytes(), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what).tobytes(), "little")

    def count(self, what: str, limit: int) -> int:
        """A u64 that counts things, of which at most `limit` are sane."""
        count = self.u64(f"the number of {what}")
        if count > limit:
            raise self.error(f"claims {count} {what}, at most {limit} are read")
        return count

    def check_room(self, what: str, count: int, min_bytes: int) -> None:
        """Refuse `count` things of at least `min_bytes` each that can't fit in what is left."""
        if count > self.num_left // min_bytes:
            raise self.error(
                f"claims {count} {what}, which can't fit in the {self.num_left} bytes left"
            )

    def text(self, what: str, limit: int, errors: str = "strict") -> str:
        """A u64 length and UTF-8; `errors` as in `bytes.decode`."""
        length = self.u64(f"the length of {what}")
        if length > self.num_left:
            raise self.error(f"{what} claims {length} bytes, only {self.num_left} are left")
        if length > limit:
            raise self.error(f"{what} has {length} bytes, at most {limit} are read")
        try:
            return self.take(length, what).tobytes().decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not valid UTF-8") from error

    def name(self, what: str, limit: int) -> str:
        """A text that must not be empty."""
        name = self.text(f"the name of {what}", limit)
        if not name:
            raise self.error(f"{what} has an empty name")
        return name

    def error(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.file.path}: {what}")
