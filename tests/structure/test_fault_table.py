"""docs/faults.md: every row names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d", line)
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0].split()[0]))
def test_every_row_has_its_tests(row: list[str]) -> None:
    item, done, tests = row[0], row[1], row[-1].rstrip(" |")
    assert done
    if tests == "none":
        return
    numbers = re.findall(r"\d+", re.match(r"[\d, ]+", item).group())  # type: ignore[union-attr]
    sources = {}
    for name in tests.split(", "):
        file, _, test = name.partition("::")
        sources[file] = (TESTS / file).read_text(encoding="utf-8")
        if test:
            assert f"def {test}(" in sources[file], name
    if any("::" not in name for name in tests.split(", ")):
        named = [
            n
            for n in numbers
            if re.search(rf"test_fault_\w*{int(n):03}", "".join(sources.values()))
        ]
        assert named == numbers, "a test that is named after the item"
