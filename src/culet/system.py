"""What the operating system can be asked and told about memory; all POSIX-only calls live here.

Every function works on Linux and degrades on other systems: a hint does nothing, an unknown figure
is None.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

if sys.platform != "win32":
    import resource

_PROC_STATUS = Path("/proc/self/status")
_PROC_MEMINFO = Path("/proc/meminfo")
_PROC_CGROUP = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
# Files with the limit and with what is used, and fields of memory.stat for cached file pages.
_CGROUP_V2 = ("memory.max", "memory.current", frozenset({"inactive_file", "active_file"}))
_CGROUP_V1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    frozenset({"total_inactive_file", "total_active_file"}),
)


def advise_dont_need(mapping: mmap.mmap, start: int, end: int) -> None:
    """Let go of the whole pages within bytes [start, end) of a file mapping.

    They are read from the file again when touched, so this never changes a value.
    """
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def advise_random(mapping: mmap.mmap, start: int, end: int) -> None:
    """Say that bytes [start, end) of a file mapping will be read in no order."""
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM, first, end - first)
    if first < end and hasattr(mmap, "MADV_NOHUGEPAGE"):
        # Where the cache holds the file in huge pages, one row would make 2 MiB resident.
        mapping.madvise(mmap.MADV_NOHUGEPAGE, first, end - first)


def lock_in_ram(data: NDArray[np.uint8]) -> None:
    """Keep these bytes in RAM until the process ends.

    Raises:
        OSError: the system can't do it, or the limit on locked memory is too small.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, "not possible on this system")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def locked_memory_limit() -> int | None:
    """Bytes that this process may lock; None for no limit or unknown."""
    if sys.platform == "win32":
        return None
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def raise_file_limit() -> None:
    """Let this process have as many files and connections open as the system allows it."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS takes less than it promises
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def try_lock_file(file: BinaryIO) -> bool:
    """Lock an open file until it is closed or the process ends; False if another has it locked.

    False too where the file system or the platform knows no locks.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def resident_bytes() -> int | None:
    """Memory of this process that is in RAM now, mapped file pages included; None if unknown."""
    return _proc_kib(_PROC_STATUS, "VmRSS")


def anonymous_resident_bytes() -> int | None:
    """The part of `resident_bytes` that belongs to no file; None if unknown."""
    return _proc_kib(_PROC_STATUS, "RssAnon")


def peak_resident_bytes() -> int | None:
    """The most memory that this process has had in RAM; None if unknown."""
    peak = _proc_kib(_PROC_STATUS, "VmHWM")
    if peak is None and sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes there, KiB elsewhere
    return peak


def available_bytes() -> int | None:
    """Memory that can still be used without swapping; None if unknown.

    Within a control group (container) or under `ulimit -v` or `-d`, what is left of the limit if
    that is less. Without an estimate by the kernel, the size of the RAM.
    """
    available = _proc_kib(_PROC_MEMINFO, "MemAvailable")
    if available is None:
        if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
            return None
        return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    return min([available, *_cgroup_headrooms(), *_rlimit_headrooms()])


def _cgroup_headrooms() -> list[int]:
    """Bytes left of each limit of this process's control groups and their parents."""
    headrooms: list[int] = []
    for line in _read_text(_PROC_CGROUP).splitlines():
        _, _, named = line.partition(":")
        controllers, _, own = named.partition(":")
        if not controllers:
            headrooms += _headrooms(_CGROUP_ROOT, own, _CGROUP_V2)
        elif "memory" in controllers.split(","):
            headrooms += _headrooms(_CGROUP_ROOT / "memory", own, _CGROUP_V1)
    return headrooms


def _headrooms(root: Path, own: str, files: tuple[str, str, frozenset[str]]) -> Iterator[int]:
    """Bytes left of the limits from group `own` up to `root`; a group that isn't there has none."""
    limit_file, used_file, reclaimable = files
    group = Path(os.path.normpath(f"{root}/{own}"))
    for folder in [group, *group.parents]:
        if not folder.is_relative_to(root):
            break
        limit = _read_text(folder / limit_file).strip()
        used = _read_text(folder / used_file).strip()
        if limit.isdigit() and used.isdigit():
            # Cached file pages count as used, but the kernel takes them back before it fails.
            fields = (line.split() for line in _read_text(folder / "memory.stat").splitlines())
            cached = sum(int(f[1]) for f in fields if f[0] in reclaimable)
            yield max(0, int(limit) - int(used) + cached)


def _rlimit_headrooms() -> Iterator[int]:
    """Bytes left of the limits on this process alone."""
    if sys.platform == "win32":
        return
    for kind, key in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        limit = resource.getrlimit(kind)[0]
        used = _proc_kib(_PROC_STATUS, key)
        if limit != resource.RLIM_INFINITY and used is not None:
            yield max(0, limit - used)


def _proc_kib(path: Path, key: str) -> int | None:
    """The field `key:  N kB` of a file in /proc, in bytes."""
    for line in _read_text(path).splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
