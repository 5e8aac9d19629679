"""What several commands print alike: byte sizes, lines for people, one JSON object for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


def format_bytes(num_bytes: int) -> str:
    """A size in binary units, such as `3.12 GiB`."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def line_printer(with_json: bool) -> Callable[[str], None]:
    """What prints lines for people: to standard output, but beside `--json` to standard error."""

    def say(line: str) -> None:
        print(line, file=sys.stderr if with_json else sys.stdout, flush=True)

    return say


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object as the last line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()
