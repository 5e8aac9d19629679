"""Choice of level and threads, refusal of bad arguments, forks and profiles."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cpu_cases import LEVELS, cpu_ops, multiply, random_weight

from culet import _native
from culet.errors import BackendError, UsageError
from culet.ops.cpu.backend import CpuOps
from culet.ops.interface import PageTable


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_isa_level_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CULET_ISA", "portable")
    assert CpuOps().isa == "portable"
    monkeypatch.setenv("CULET_ISA", "sse9")
    with pytest.raises(BackendError, match=r"CULET_ISA: ISA level sse9: no such level; this CPU"):
        CpuOps()
    monkeypatch.delenv("CULET_ISA")
    assert CpuOps().isa == LEVELS[0]


def test_threads() -> None:
    assert CpuOps(threads=3).num_threads == 3
    assert 1 <= _native.default_num_threads() <= (os.cpu_count() or 1)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert _native.default_num_threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    with pytest.raises(UsageError, match="threads is 0"):
        CpuOps(threads=0)


def test_threads_follow_the_quota_of_a_control_group() -> None:
    """A container or service that may use 2 of 8 CPUs; here 1 of however many there are."""
    root = Path("/sys/fs/cgroup/cpu")
    group = root / f"culet-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs the right to make a control group of version 1")
    try:
        (group / "cpu.cfs_quota_us").write_text("100000")
        code = "import os; open('{}', 'w').write(str(os.getpid())); from culet import _native; "
        code = code.format(group / "cgroup.procs") + "print(_native.default_num_threads())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "1", done.stderr
    finally:
        group.rmdir()


def test_bad_arguments_are_refused_and_change_nothing() -> None:
    ops = cpu_ops()
    weight = ops.weight(random_weight("Q4_0", 16, 64))
    x, out = zeros(2, 64), zeros(2, 16)
    with pytest.raises(ValueError, match="do not fit"):
        ops.norm_linear([zeros(2, 17)], x, None, 1e-6, [weight])
    with pytest.raises(TypeError, match="outs must be a writable float32 matrix"):
        ops.norm_linear([np.zeros((2, 16))], x, None, 1e-6, [weight])  # type: ignore[list-item]
    read_only = zeros(2, 16)
    read_only.flags.writeable = False
    with pytest.raises(TypeError, match="writable"):
        ops.norm_linear([read_only], x, None, 1e-6, [weight])
    with pytest.raises(ValueError, match="norm has 63 values instead of 64"):
        ops.norm_linear([out], x, zeros(63), 1e-6, [weight])
    with pytest.raises(ValueError, match="contiguous rows"):
        ops.norm_linear([out], zeros(64, 2).T, None, 1e-6, [weight])
    with pytest.raises(ValueError, match="ids holds 16, outside of 0 to 15"):
        ops.embed(zeros(1, 64), weight, np.array([16], np.int32), 1.0)
    with pytest.raises(TypeError, match="int32"):
        ops.gather_rows(zeros(1, 64), x, np.array([0]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not 16 x 65 values of Q4_0"):
        ops.encode_weight(2, 16, 65, np.zeros((16, 36), np.uint8), 1.0)
    ops.sync()


def test_bad_page_tables_are_refused() -> None:
    ops = cpu_ops()
    kv = ops.kv_layer(2, 16, 1, 16, "f16")

    def attend(positions: list[int], pages: list[int], row_seq: list[int] | None = None) -> None:
        n = len(positions)
        table = PageTable(
            16,
            np.array(row_seq or [0] * n, np.int32),
            np.array(positions, np.int32),
            np.array([0, len(pages)], np.int32),
            np.zeros(1, np.int32),
            np.array(pages, np.int32),
        )
        ops.attention(zeros(n, 16), zeros(n, 16), kv, table, None, 1.0)

    attend([0, 1], [1])
    with pytest.raises(ValueError, match="does not fit storage of 2 pages"):
        attend([0], [2])
    with pytest.raises(ValueError, match="position 16 of row 0 has no page"):
        attend([16], [0])
    with pytest.raises(ValueError, match="positions of a sequence must ascend"):
        attend([1, 1], [0])
    with pytest.raises(ValueError, match="row 0 belongs to sequence 1 of 1"):
        attend([0], [0], [1])
    with pytest.raises(ValueError, match="page -1"):
        attend([0], [-1])
    ops.sync()


def test_buffers_live_until_sync() -> None:
    ops = cpu_ops()
    source = random_weight("F32", 16, 64)
    out = np.empty((1, 16), np.float32)
    x = np.ones((1, 64), np.float32)
    ops.norm_linear([out], x.copy(), None, 1e-6, [ops.weight(source)])  # both dropped here
    ops.sync()
    np.testing.assert_array_equal(out, multiply(ops, x, ops.weight(source), 16))


def test_python_runs_while_ops_do() -> None:
    """The GIL is free inside sync: another thread's counter goes on."""
    ops = cpu_ops(threads=1)
    weight = ops.weight(random_weight("F32", 2048, 1024))
    x, out = zeros(64, 1024), zeros(64, 2048)
    for _ in range(60):
        ops.norm_linear([out], x, None, 1e-6, [weight])
    counts = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            counts[0] += 1
            time.sleep(1e-4)

    thread = threading.Thread(target=count)
    thread.start()
    before = counts[0]
    ops.sync()
    during = counts[0] - before
    stop.set()
    thread.join()
    assert during > 3


# Python 3.12 warns of what the test is about.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_computes() -> None:
    ops = cpu_ops(threads=2)
    weight = ops.weight(random_weight("Q4_0", 512, 256))
    x = np.ones((1, 256), np.float32)
    expected = multiply(ops, x, weight, 512)
    # A child that calls os._exit at once: the parent's other threads don't matter to it.
    child = os.fork()
    if child == 0:
        same = np.array_equal(multiply(ops, x, weight, 512), expected)
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_profile_counts_calls_by_op() -> None:
    ops = cpu_ops()
    x = zeros(1, 16)
    ops.set_profile(True)
    for _ in range(3):
        ops.scale(x, 2.0)
    ops.sync()
    profile = ops.take_profile()
    assert list(profile) == ["scale"]
    num_calls, seconds = profile["scale"]
    assert num_calls == 3 and seconds > 0
    assert ops.take_profile() == {}


def test_probes() -> None:
    assert _native.probe_read(2, 1 << 22) > 0
    assert _native.probe_fork_join(2, 10) > 0


def test_what_computes_is_described() -> None:
    assert cpu_ops("portable", 2).description == "portable, 2 threads"
