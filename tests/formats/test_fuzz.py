"""The mutation loop of `fuzz`: a few rounds always, two hundred thousand when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import fuzz


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    outcome = fuzz(1400, seed=1, folder=tmp_path)
    assert outcome.findings == []
    assert set(outcome.num_files.values()) == {200}
    # Damage that does no harm is no reason to refuse.
    assert all(outcome.num_read[kind] for kind in ("gguf", "shards", "packed", "weights"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_thousand_damaged_files(tmp_path: Path) -> None:
    assert fuzz(200_000, seed=0, folder=tmp_path).findings == []
