"""Commands without MODEL: the built-in model, or one clear sentence where there is none."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from culet import builtin
from culet.cli.main import main
from culet.cli.options import resolve_model


def test_the_model_is_used_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "toy.gguf"
    path.touch()
    monkeypatch.setattr(builtin, "MODEL_PATH", path)
    with caplog.at_level(logging.WARNING, "culet"):
        assert resolve_model(None) == path
    assert [record.message for record in caplog.records] == [builtin.NOTICE]


@pytest.mark.parametrize("command", ["run", "bench", "chat"])
def test_a_build_without_it_says_so(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(builtin, "MODEL_PATH", tmp_path / "none.gguf")
    assert main([command]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("culet: no MODEL given, and this build ships no model of its own")
