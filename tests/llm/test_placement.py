"""Options of placement: what they mean together, what is refused, what is only warned of."""

from __future__ import annotations

import errno
import logging
import os
import resource
from pathlib import Path

import pytest

import culet
from culet import system
from culet.errors import UsageError
from culet.llm.packing import pack_model
from culet.llm.placement import Holding, decide_holding


@pytest.mark.parametrize(
    ("embed_weights", "load_mode", "expected"),
    [
        ("auto", "mmap", Holding("mmap", "disk")),
        ("auto", "none", Holding("none", "host")),
        ("auto", "mlock", Holding("mlock", "disk", locks_table=True)),
        ("disk", "none", Holding("none", "disk")),
        ("disk", "mlock", Holding("mlock", "disk")),
        ("host", "mmap", Holding("mmap", "host")),
        ("device", "mmap", Holding("mmap", "device")),
    ],
)
def test_what_the_options_mean(embed_weights: str, load_mode: str, expected: Holding) -> None:
    assert decide_holding(embed_weights, load_mode) == expected


def test_options_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match="load_mode 'x' does not exist; there are mmap, none"):
        decide_holding("auto", "x")
    with pytest.raises(UsageError, match="embed_weights 'x' does not exist"):
        decide_holding("x", "mmap")


def test_the_only_table_stays(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from support.tiny_models import CONFIGS, make_model, save_gguf

    tiny = next(t for t in CONFIGS if t.architecture == "gemma3")
    path = save_gguf(make_model(tiny), tmp_path / "g3.gguf")
    for place in ("host", "disk"):
        with pytest.raises(UsageError, match="the token table, which is also the LM head"):
            culet.load(path, backend="reference", context_length=32, embed_weights=place)
    culet.load(path, backend="reference", context_length=32, embed_weights="device").close()


def test_locking_that_is_not_allowed_is_one_warning(
    model_path: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = tmp_path / "m.culet"
    pack_model(model_path, packed)

    def refuse(data: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(system, "lock_in_ram", refuse)
    monkeypatch.setattr(system, "locked_memory_limit", lambda: 1 << 16)
    with caplog.at_level(logging.WARNING, "culet"):
        with culet.load(packed, backend="reference", load_mode="mlock", context_length=32) as llm:
            answer = llm.generate("a", max_tokens=3, temperature=0, ignore_eos=True)
    assert len(answer.token_ids) == 3
    assert len(caplog.records) == 1
    assert "the limit is 64 KiB, `ulimit -l unlimited`" in caplog.records[0].getMessage()


def test_locking_that_is_allowed_is_silent(
    model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed = tmp_path / "m.culet"
    pack_model(model_path, packed)
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit not in (resource.RLIM_INFINITY, -1) and limit < packed.stat().st_size + (1 << 20):
        pytest.skip("this process may lock too little")
    with caplog.at_level(logging.WARNING, "culet"):
        with culet.load(packed, backend="reference", load_mode="mlock", context_length=32) as llm:
            llm.generate("a", max_tokens=2)
    assert not caplog.records
