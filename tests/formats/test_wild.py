"""Every form of file in the wild gets the verdict that it must get; what is served also runs."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
import wild.folder_cases
import wild.gguf_cases
import wild.gguf_file_cases
from hostile import gguf_files, safetensors_files
from numpy.typing import NDArray
from wild.cases import CASES, Case
from wild.wild_models import e_series

import culet
from culet.cli.check import line_of, verdict_on
from culet.cli.main import main
from culet.llm.dry_run import VocabularyCheck

PROMPT = "the fox"
SERVED = [c for c in CASES if c.refused is None]
CUT = {c.name for c in SERVED if "stub" in c.name or c.name.endswith("_cut")}


def test_there_are_many() -> None:
    assert wild.gguf_cases and wild.gguf_file_cases and wild.folder_cases
    names = [c.name for c in CASES]
    assert len(names) == len(set(names)) >= 150


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of small files: whether they survive a power cut doesn't matter."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.refused or c.name in CUT], ids=lambda c: c.name
)
def test_verdict(case: Case, tmp_path: Path) -> None:
    verdict = verdict_on(str(case.make(tmp_path)), VocabularyCheck())
    if case.refused is None:
        assert verdict.served, verdict.reason
        return
    assert not verdict.served
    assert verdict.reason is not None and re.search(case.refused, verdict.reason), verdict.reason
    line = line_of(verdict)
    assert "\n" not in line and len(line) < 1200


def logits_of(path: Path) -> NDArray[np.float32]:
    with culet.load(path, context_length=32, max_seqs=1, threads=1) as llm:
        return llm.logits(llm.tokenizer.encode(PROMPT))


@pytest.fixture(scope="module")
def plain_logits(tmp_path_factory: pytest.TempPathFactory) -> NDArray[np.float32]:
    return logits_of(e_series().write(tmp_path_factory.mktemp("plain")))


@pytest.mark.parametrize(
    "case",
    [c for c in SERVED if c.name not in CUT],
    ids=lambda c: c.name,
)
def test_what_is_served_runs(
    case: Case,
    tmp_path: Path,
    plain_logits: NDArray[np.float32],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "culet"):
        path = case.make(tmp_path)
        verdict = verdict_on(str(path), VocabularyCheck())
        assert verdict.served, verdict.reason
        with culet.load(path, context_length=32, max_seqs=1, threads=1) as llm:
            logits = llm.logits(llm.tokenizer.encode(PROMPT))
            if case.logged and "template" in case.logged:
                llm.chat([{"role": "user", "content": "a"}], max_tokens=1)
    assert np.isfinite(logits).all()
    if case.logged is not None:
        found = [r for r in caplog.records if re.search(case.logged, r.getMessage())]
        assert len(found) == 1, caplog.messages
    if case.same_as_plain:
        np.testing.assert_array_equal(logits, plain_logits)


def test_many_stubs_in_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything at once, through the command, hostile files too."""
    paths = []
    for number, case in enumerate(CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths.append(str(case.make(folder)))
    for number, maker in enumerate([*gguf_files.MAKERS, *safetensors_files.MAKERS]):
        suffix = "gguf" if maker in gguf_files.MAKERS else "safetensors"
        path = tmp_path / f"hostile-{number}.{suffix}"
        path.write_bytes(maker.make())
        paths.append(str(path))
    start = time.perf_counter()
    assert main(["check", "--json", *paths]) == 3
    seconds = time.perf_counter() - start
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert len(json.loads(said.out)["files"]) == len(paths)
    assert len(lines) == len(paths) + 1
    assert lines[-1] == f"{len(SERVED)} of {len(paths)} would be served"
    assert seconds < 0.1 * len(paths)
