"""Programs measured from outside: wall time, peak memory, and what they print."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Finished:
    """One process that ran to its end.

    Attributes:
        output: what it printed, standard error included.
    """

    seconds: float
    peak_rss_bytes: int
    output: str

    def last_object(self) -> dict[str, Any]:
        """The last JSON object that stands on a line of its own."""
        lines = [line for line in self.output.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(lines[-1])
        return found


def run(command: Sequence[str | Path | int]) -> Finished:
    """Run a command to its end; `SystemExit` with the end of its output if it fails."""
    words = [str(word) for word in command]
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        start = time.perf_counter()
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        out.seek(0)
        output = out.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{output[-2000:]}")
    return Finished(seconds, usage.ru_maxrss << 10, output)
