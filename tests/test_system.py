"""Memory figures of the host: plausible on Linux, never an exception elsewhere."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from culet import system

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


@needs_proc
def test_resident_bytes_follow_what_is_touched() -> None:
    num_bytes = 32 << 20
    # Fresh pages: what an allocator hands out may have been touched before.
    with mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        before = system.anonymous_resident_bytes()
        block.write(b"\1" * num_bytes)
        after = system.anonymous_resident_bytes()
        resident, peak = system.resident_bytes(), system.peak_resident_bytes()
    assert before is not None and after is not None
    assert after - before > num_bytes * 3 // 4
    assert resident is not None and peak is not None
    assert after <= resident <= peak + (1 << 20)  # the kernel counts with some delay


@needs_proc
def test_the_peak_is_of_this_process_alone() -> None:
    block = np.ones(64 << 20, dtype=np.uint8)
    code = "from culet import system; print(system.peak_resident_bytes())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert int(child.stdout) < block.nbytes


@needs_proc
def test_available_memory_is_plausible() -> None:
    available = system.available_bytes()
    assert available is not None and 0 <= available < 1 << 46


def test_limits_of_control_groups_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = tmp_path / "cg" / "outer", tmp_path / "cg" / "outer" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "meminfo").write_text("MemTotal: 8000 kB\nMemAvailable:    7000 kB\n")
    (tmp_path / "cgroup").write_text("0::/outer/inner\n")
    (outer / "memory.max").write_text("3000000\n")
    (outer / "memory.current").write_text("2500000\n")
    (outer / "memory.stat").write_text("anon 1\nactive_file 100\ninactive_file 200\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("2500000\n")
    monkeypatch.setattr(system, "_PROC_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(system, "_PROC_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(system, "_CGROUP_ROOT", tmp_path / "cg")
    assert system.available_bytes() == 500_300
    (outer / "memory.max").write_text("max\n")
    assert system.available_bytes() == 7000 * 1024


def test_limits_of_control_groups_of_version_1_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "cg" / "memory" / "outer" / "inner"
    group.mkdir(parents=True)
    (tmp_path / "meminfo").write_text("MemAvailable:    7000 kB\n")
    (tmp_path / "cgroup").write_text("9:name=systemd:/x\n4:memory:/outer/inner\n1:cpu:/\n0::/\n")
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group / "memory.usage_in_bytes").write_text("2500000\n")
    (group.parent / "memory.limit_in_bytes").write_text("3000000\n")
    (group.parent / "memory.usage_in_bytes").write_text("2500000\n")
    (group.parent / "memory.stat").write_text(
        "active_file 7\ntotal_active_file 100\ntotal_inactive_file 200\n"
    )
    monkeypatch.setattr(system, "_PROC_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(system, "_PROC_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(system, "_CGROUP_ROOT", tmp_path / "cg")
    assert system.available_bytes() == 500_300
    # In a container the path is the host's, and the group itself is mounted as the root.
    (tmp_path / "cgroup").write_text("4:memory:/docker/0123\n")
    (tmp_path / "cg" / "memory" / "memory.limit_in_bytes").write_text("2600000\n")
    (tmp_path / "cg" / "memory" / "memory.usage_in_bytes").write_text("2500000\n")
    assert system.available_bytes() == 100_000


@needs_proc
@pytest.mark.parametrize("option", ["-v", "-d"])
def test_limits_of_the_shell_count(option: str) -> None:
    code = "from culet import system; print(system.available_bytes())"
    script = f'ulimit {option} 3000000 && exec "$0" -c "{code}"'
    child = subprocess.run(
        ["bash", "-c", script, sys.executable], capture_output=True, check=True, text=True
    )
    assert 0 < int(child.stdout) < 3_000_000 << 10


def test_without_proc_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PROC_STATUS", "_PROC_MEMINFO", "_PROC_CGROUP", "_CGROUP_ROOT"):
        monkeypatch.setattr(system, name, tmp_path / "none")
    assert system.resident_bytes() is None
    assert system.anonymous_resident_bytes() is None
    if sys.platform == "linux":
        assert system.peak_resident_bytes() is None
    ram = system.available_bytes()
    assert ram is None or ram > 1 << 26


def test_pages_let_go_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 256)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        for start, end in ((0, 65536), (1, 65535), (100, 200), (4096, 4096)):
            assert mapping[300] == 44
            system.advise_dont_need(mapping, start, end)
            assert mapping[300] == 44
