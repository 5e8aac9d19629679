"""Rows of results: where they were measured, and files that collect them."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from culet import _native


def machine() -> str:
    """The CPU's name and the ISA level that Culet takes there: hosts hide which model a CPU is."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    else:
        name = platform.machine()
    return f"{name}, {_native.isa_levels()[0]}"


def commit() -> str:
    """The checkout's commit, short; empty outside of a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one row, a line of JSON, to a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
