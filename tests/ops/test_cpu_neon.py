"""The ARM64 kernels, cross-compiled and run under qemu: the same bits as the portable ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-I", str(ROOT / "csrc")]


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason=f"needs {COMPILER} and {EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
def test_neon_gives_the_portable_bits(tmp_path: Path) -> None:
    program = build(tmp_path)
    run = subprocess.run([EMULATOR, program, "neon"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    # A CPU without dot products gets the portable level instead of an illegal instruction.
    old = [EMULATOR, "-cpu", "cortex-a72", program]
    run = subprocess.run([*old, "neon"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (2, "this CPU lacks its instructions\n")
    subprocess.run([*old, "portable"], check=True)


def build(tmp_path: Path) -> str:
    """`compare_levels` for ARM64."""
    sources = {
        "neon": (ROOT / "csrc/isa/neon.cpp", ["-march=armv8.2-a+dotprod+fp16"]),
        "portable": (ROOT / "csrc/isa/portable.cpp", []),
        "dispatch": (ROOT / "csrc/dispatch.cpp", []),
        "main": (ROOT / "tests/native/compare_levels.cpp", []),
    }
    objects = []
    for name, (source, flags) in sources.items():
        objects.append(str(tmp_path / f"{name}.o"))
        subprocess.run([COMPILER, *FLAGS, *flags, "-c", source, "-o", objects[-1]], check=True)
    program = str(tmp_path / "compare_levels")
    subprocess.run([COMPILER, "-static", *objects, "-o", program], check=True)
    return program
