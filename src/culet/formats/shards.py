"""Names of the files of a split model: STEM-00002-of-00005.gguf, and .safetensors likewise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from culet.errors import ModelFileError

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)")
_MAX_LISTED = 5  # names in one message


def shard_name(stem: str, number: int, count: int, suffix: str) -> str:
    """The file name of shard `number`, counted from 1."""
    return f"{stem}-{number:05}-of-{count:05}{suffix}"


def shards_of(name: str) -> list[str]:
    """Names of all files of the model that the file of this name belongs to, in order."""
    match = _NAME.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return [name]  # a model in one file, whatever its name
    count = int(match["count"])
    return [shard_name(match["stem"], n, count, match["suffix"]) for n in range(1, count + 1)]


def require_files(folder: Path, names: Sequence[str], label: Path) -> None:
    """`ModelFileError`, beginning with `label`, that lists those of `names` not in `folder`."""
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelFileError(
            f"{label}: of {len(names)} weight files {len(missing)} are missing: {listed(missing)}"
        )


def listed(names: Sequence[str]) -> str:
    """The names in a row, cut short if there are many."""
    rest = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
