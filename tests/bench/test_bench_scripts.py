"""Scripts in bench/ start: their help is there, and bench/README.md names each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = [p for p in sorted(BENCH.glob("*.py")) if "__main__" in p.read_text()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_help(script: Path) -> None:
    if "import torch" in script.read_text():
        pytest.importorskip("transformers")
    lines = script.read_text().splitlines()
    usage = next(line for line in lines if f"python bench/{script.name}" in line).split()[2:]
    subcommand = [word for word in usage[:1] if word.isalpha() and word.islower()]
    command = [sys.executable, script, *subcommand, "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {script.name}")
    for option in (w.strip("[]") for w in usage if w.startswith("[--")):
        assert option in done.stdout, f"{script.name} tells of {option}"


def test_every_script_is_described() -> None:
    text = (BENCH / "README.md").read_text()
    assert [p.name for p in SCRIPTS if f"| `{p.name}` |" not in text] == []
