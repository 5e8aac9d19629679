"""The byte plan: headers say what memory will hold; what can't fit is refused before loading."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import culet
from culet import system
from culet.cli.main import main
from culet.engine.config import EngineConfig
from culet.formats.opening import open_checkpoint
from culet.formats.packed import LoadMode
from culet.llm.loading import load_model
from culet.llm.memory import reserved_bytes
from culet.llm.packing import pack_model
from culet.models.registry import read_config
from culet.ops.select import load_ops

MIB = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of some 90 MiB in both forms: large beside what an interpreter wavers by."""
    pytest.importorskip("torch")
    from support.tiny_models import Tiny, make_model, save_gguf

    sizes = {
        "hidden_size": 256,
        "intermediate_size": 4096,
        "vocab_size": 20_000,
        "vocab_size_per_layer_input": 20_000,
        "hidden_size_per_layer_input": 64,
        "head_dim": 64,
        "global_head_dim": 64,
        "use_double_wide_mlp": False,
    }
    folder = tmp_path_factory.mktemp("large")
    path = save_gguf(make_model(Tiny("large", "gemma4", sizes)), folder / "large.gguf")
    packed = folder / "large.culet"
    pack_model(path, packed)
    return {"gguf": path, "packed": packed}


# Runs in a process of its own: weights, one pass over them, and what the system counts.
_MEASURE = """
import gc, json, sys
import numpy as np
import culet
from culet import system
before = system.anonymous_resident_bytes(), system.resident_bytes()
with culet.load(sys.argv[1], context_length=64, max_seqs=1, threads=1, load_mode=sys.argv[2],
                embed_weights=sys.argv[3], prefix_cache=False) as llm:
    llm.logits(np.arange(2))
    gc.collect()
    report = llm.memory()
    print(json.dumps({
        "anonymous": system.anonymous_resident_bytes() - before[0],
        "resident": system.resident_bytes() - before[1],
        "planned": report.planned_bytes,
        "actual": report.actual_bytes,
        "mapped": sum(g.mapped_bytes for g in report.groups),
        "groups": {g.name: [g.planned_bytes, g.actual_bytes] for g in report.groups},
    }))
"""


@pytest.mark.parametrize(
    ("form", "load_mode", "embed_weights"),
    [
        ("gguf", "mmap", "disk"),
        ("gguf", "mmap", "host"),
        ("packed", "mmap", "disk"),
        ("packed", "none", "disk"),
        ("packed", "none", "host"),
    ],
)
def test_planned_is_actual(
    large: dict[str, Path], form: str, load_mode: str, embed_weights: str
) -> None:
    if system.anonymous_resident_bytes() is None:
        pytest.skip("this system doesn't count memory of a process by kind")
    command = [sys.executable, "-c", _MEASURE, str(large[form]), load_mode, embed_weights]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    # What is held is what was planned, to the byte; the token table is there once.
    assert found["actual"] == found["planned"]
    for planned, actual in found["groups"].values():
        assert planned == actual
    # What the system counts beyond it are interpreter and buffers: the modules that the first
    # request imports, the step's activations, thread stacks.
    spare = 24 * MIB
    assert 0.95 * found["planned"] <= found["anonymous"] <= 1.05 * found["planned"] + spare
    total = found["planned"] + found["mapped"]
    assert 0.95 * total <= found["resident"] <= 1.05 * total + 2 * spare


@pytest.mark.parametrize("load_mode", ["mmap", "none"])
@pytest.mark.parametrize("form", ["gguf", "packed"])
def test_the_tied_table_is_one_object(
    large: dict[str, Path], form: str, load_mode: LoadMode
) -> None:
    """The head adds no bytes: it is the embedding."""
    checkpoint = open_checkpoint(large[form], load_mode=load_mode)
    ops = load_ops("cpu", threads=1)
    loaded = load_model(read_config(checkpoint), checkpoint, ops, "disk")
    head = loaded.model.head  # type: ignore[attr-defined]
    assert head.output_table is head.embedding
    held = loaded.held_bytes()
    assert "output" not in held
    is_mapped = form == "packed" and load_mode == "mmap"
    assert (held["token_embd"] == 0) is is_mapped
    checkpoint.close()


def test_inspect_shows_the_plan(large: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    plans = {}
    for form, path in large.items():
        assert main(["inspect", str(path), "--ctx", "64", "--json"]) == 0
        plans[form] = json.loads(capsys.readouterr().out.splitlines()[-1])["plan"]
        assert main(["inspect", str(path), "--ctx", "64"]) == 0
        assert "a context of 64 tokens fits" in capsys.readouterr().out
    gguf, packed = plans["gguf"], plans["packed"]
    assert gguf["mapped_bytes"] == 0 < packed["mapped_bytes"]
    assert packed["private_bytes"] + packed["mapped_bytes"] == gguf["private_bytes"]
    table = next(g for g in gguf["groups"] if g["name"] == "per-layer table")
    assert table["by_row_bytes"] == table["file_bytes"] > 0 == table["private_bytes"]


def test_what_cannot_fit_is_refused_with_what_would(
    large: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(path: Path, num_bytes: int, **options: Any) -> str:
        monkeypatch.setattr(system, "available_bytes", lambda: num_bytes)

        def no_loading(*args: object) -> None:
            raise AssertionError("refused only after loading had begun")

        monkeypatch.setattr("culet.llm.facade.load_model", no_loading)
        with pytest.raises(culet.CapacityError) as error:
            culet.load(path, **options)
        return str(error.value)

    config = read_config(open_checkpoint(large["gguf"]))
    reserve = reserved_bytes(config, EngineConfig(64))
    # Less than the weights: only mapping them helps.
    assert "a packed file (`culet pack`)" in refusal(large["gguf"], reserve + 15 * MIB)
    # The table in memory is what is too much.
    message = refusal(large["packed"], reserve + 8 * MIB, load_mode="none", context_length=64)
    assert "--load-mode mmap --embed-weights disk" in message
    assert f"does not fit: of the {(reserve + 8 * MIB) // MIB} MiB available" in message
    # Nothing helps.
    assert "no option makes it fit" in refusal(large["packed"], 10 * MIB)
    # The context alone is too long.
    reserve = reserved_bytes(config, EngineConfig(131072))
    message = refusal(large["packed"], reserve + 4 * MIB, context_length=131072)
    assert "the KV cache of 131072 tokens does not fit in memory" in message
    assert "tokens would" in message
    # What was asked for is too much, though less would do.
    message = refusal(large["packed"], reserve + 40 * MIB, kv_bytes=1 << 40)
    assert "would take" in message and re.search(r"fit with --kv-memory [123]\dMiB", message)


def test_check_names_the_context_that_fits(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for memory in ("1M", "620M", "8G"):
        assert main(["check", str(model_path), "--memory", memory, "--json"]) == 0
        out = capsys.readouterr().out
        found[memory] = json.loads(out.splitlines()[-1])["files"][0]["fitting_context"]
    assert found["1M"] == 0
    assert found["620M"] == found["8G"] == 96
    with pytest.raises(SystemExit):
        main(["check", str(model_path), "--memory", "much"])
