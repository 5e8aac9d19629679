"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from culet.system import try_lock_file


@contextlib.contextmanager
def replacing(path: Path, num_bytes: int = 0) -> Iterator[BinaryIO]:
    """A new file for writing that replaces `path` at the end of the block.

    After an exception or a crash, `path` is as it was before; what a crash leaves behind has
    another name, is never taken for the result, and goes when the same file is written again.

    Args:
        num_bytes: that will be written; `OSError` at once if the disk has no room for so many.
    """
    _remove_leftovers(path)
    free = shutil.disk_usage(path.parent).free
    if free < num_bytes:
        what = f"{-(-num_bytes >> 20)} MiB are needed, {free >> 20} MiB are free"
        raise OSError(errno.ENOSPC, what)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            try_lock_file(file)  # tells _remove_leftovers that it is in use
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """What a process that was killed left when it wrote the same file; nobody has it locked."""
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with contextlib.suppress(OSError), old.open("rb") as file:
            if try_lock_file(file):
                old.unlink()
