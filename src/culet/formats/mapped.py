"""A read-only mapping of one file, and the checks that hold for a model file of any format."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from culet import _native, system
from culet.errors import ModelFileError, UsageError

_LFS_POINTER_START = b"version https://git-lfs.github.com/spec/"


class FileBytes(Protocol):
    """Bytes of a file and the file's name for messages: what a parser needs.

    Attributes:
        data: uint8 [size], read-only.
    """

    path: Path
    data: NDArray[np.uint8]

    @property
    def size(self) -> int: ...


class MappedFile:
    """The bytes of a file, read by the system when touched.

    Attributes:
        data: uint8 [size], read-only. Views of it stay valid after `close`.
    """

    def __init__(self, path: Path, num_bytes: int = 0) -> None:
        """Map `path`; `UsageError` if it can't be opened, `ModelFileError` if it is no model.

        Args:
            num_bytes: map only so many from the beginning; the caller knows that they are there.
        """
        self.path = path
        size = _regular_file_size(path)
        if size == 0:
            raise ModelFileError(f"{path}: the file is empty")
        try:
            with path.open("rb") as file:
                self._identity = _identity(os.fstat(file.fileno()))
                self._mapping = mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_READ)
        except OSError as error:
            raise UsageError(f"{path}: can't be read ({error.strerror})") from error
        self.data: NDArray[np.uint8] = np.frombuffer(self._mapping, dtype=np.uint8)
        if bytes(self.data[: len(_LFS_POINTER_START)]) == _LFS_POINTER_START:
            raise ModelFileError(
                f"{path}: this is a Git LFS pointer of {self.size} bytes, not the model; "
                f"fetch the real file with `git lfs pull`"
            )

    @property
    def size(self) -> int:
        return int(self.data.size)

    def check_unchanged(self) -> None:
        """Make sure that the bytes are still those that were opened.

        A file that was removed or renamed stays as it is for those who have it open.

        Raises:
            ModelFileError: the file was cut or written to.
        """
        try:
            now = _identity(os.stat(self.path))
        except OSError:
            return
        is_same_file = now[:2] == self._identity[:2]
        if is_same_file and now != self._identity:
            raise ModelFileError(
                f"{self.path}: was written to while in use (size or time have changed), so that "
                "nothing computed from it can be trusted; start again when it is whole"
            )

    def release(self, start: int, end: int) -> None:
        """Give the pages within bytes [start, end) back to the system until they are read again."""
        system.advise_dont_need(self._mapping, start, end)

    def expect_random_access(self, start: int, end: int) -> None:
        """Say that bytes [start, end) will be read here and there, so reading ahead is waste."""
        system.advise_random(self._mapping, start, end)

    def lock(self, start: int, end: int) -> None:
        """Keep bytes [start, end) in RAM; `OSError` if the system doesn't allow it."""
        system.lock_in_ram(self.data[start:end])

    def close(self) -> None:
        """Forget the mapping; it goes away with the last view of it."""
        self.data = self.data[:0].copy()


class FilePart:
    """Some bytes of a mapped file, for a parser that expects a file of its own."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self.path = path
        self.data = data

    @property
    def size(self) -> int:
        return int(self.data.size)


def explain_lost_pages() -> None:
    """Have the process end with one line, not without a word, if a mapped file is cut while in use.

    Changes what the process does on SIGBUS; a handler that it has already stays.
    """
    _native.explain_lost_pages(ModelFileError.exit_code)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """Which file it is, and what changes when it is written to."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _regular_file_size(path: Path) -> int:
    """Opening a pipe or device could block for ever, so look first."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file or folder") from None
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror})") from error
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path}: not a regular file")
    return status.st_size
