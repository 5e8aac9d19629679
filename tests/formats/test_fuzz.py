"""The mutation loop of `fuzz`: a few rounds always, two hundred thousand when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import fuzz


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    assert fuzz(1500, seed=1, folder=tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_thousand_damaged_files(tmp_path: Path) -> None:
    assert fuzz(200_000, seed=0, folder=tmp_path) == []
