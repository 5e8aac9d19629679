"""The byte plan: headers say what memory will hold; what can't fit is refused before loading."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import culet
from culet import system
from culet.builtin import MODEL_PATH
from culet.cli.main import main
from culet.engine.config import EngineConfig
from culet.formats.opening import open_checkpoint
from culet.formats.packed import LoadMode
from culet.llm.loading import load_model
from culet.llm.memory import reserved_bytes
from culet.llm.packing import pack_model
from culet.models.registry import read_config
from culet.ops.select import load_ops
from support import measured_memory
from support.e2b_shape import write_e2b_shape

MIB = 1 << 20
SHARED = Path(os.environ.get("CULET_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """E2B's widths in both forms, and the built-in model."""
    folder = tmp_path_factory.mktemp("shape")
    path = write_e2b_shape(folder / "e2b.gguf")
    packed = folder / "e2b.culet"
    pack_model(path, packed)
    return {"gguf": path, "packed": packed, "builtin": MODEL_PATH}


def measured(path: Path, load_mode: str, embed_weights: str) -> dict[str, Any]:
    """What a process of its own planned, held and took, by tests/support/measured_memory.py."""
    if not Path("/proc/self/smaps").exists():
        pytest.skip("this system doesn't count memory of a process by kind")
    words = [str(path), load_mode, embed_weights, "768"]
    done = subprocess.run(
        [sys.executable, measured_memory.__file__, *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_plan_is_what_was_taken(found: dict[str, Any]) -> None:
    """To the byte where bytes are counted apart, within 5% of what the system counts.

    Or within two huge pages: whether the system has one at hand for what was asked for differs
    from run to run, and what the interpreter adds with the first request between its versions.
    """
    close = functools.partial(pytest.approx, rel=0.05, abs=4 * MIB)
    for name, (planned, actual, _) in found["groups"].items():
        assert actual is None or planned == actual, name
    counted = {name for name, (_, actual, _) in found["groups"].items() if actual is not None}
    assert counted == {
        "token table", "per-layer table", "layers", "K/V, sliding", "K/V, full"
    }  # fmt: skip
    most = found["most"]
    assert most["anonymous"] == close(found["planned"]), found
    assert most["all"] == close(found["planned_resident"]), found
    mapped = sum(m for name, (_, _, m) in found["groups"].items() if name != "program")
    if found["by_row"] > 4 * MIB:  # of a mapped table, only rows that were needed
        assert most["model"] < mapped + found["by_row"] / 2, found
    if mapped > 32 * MIB:  # a packed file's weights
        assert most["model"] == pytest.approx(mapped, rel=0.05), found


@pytest.mark.parametrize(
    ("form", "load_mode", "embed_weights"),
    [
        ("gguf", "mmap", "disk"),
        ("gguf", "mmap", "host"),
        ("gguf", "none", "disk"),
        ("gguf", "none", "host"),
        ("packed", "mmap", "disk"),
        ("packed", "none", "disk"),
        ("packed", "none", "host"),
        ("builtin", "mmap", "disk"),
        ("builtin", "mmap", "host"),
        ("builtin", "none", "disk"),
        ("builtin", "none", "host"),
    ],
)
def test_planned_is_measured(
    files: dict[str, Path], form: str, load_mode: str, embed_weights: str
) -> None:
    if not files[form].exists():
        pytest.skip("this checkout has no built-in model")
    assert_plan_is_what_was_taken(measured(files[form], load_mode, embed_weights))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_planned_is_measured_on_the_whole_shape(tmp_path: Path) -> None:
    """A file of E2B's true shape (3.4 GB): CULET_E2B names one, or it is made here."""
    maker = SHARED / "tools" / "make_real_shape_gguf.py"
    vocabulary = SHARED / "data" / "ggml-vocab-gemma-4.gguf"
    path = Path(os.environ.get("CULET_E2B", tmp_path / "e2b-q4_0.gguf"))
    if not path.exists():
        if not maker.exists():
            pytest.skip("CULET_SHARED has no maker of such a file")
        if shutil.disk_usage(tmp_path).free < 5 << 30:
            pytest.skip("5 GB of disk are needed")
        command = [sys.executable, str(maker), "e2b", "q4_0", str(path)]
        subprocess.run([*command, "--vocab", str(vocabulary)], check=True)
    for load_mode in ("mmap", "none"):
        for embed_weights in ("disk", "host"):
            assert_plan_is_what_was_taken(measured(path, load_mode, embed_weights))


@pytest.mark.parametrize("load_mode", ["mmap", "none"])
@pytest.mark.parametrize("form", ["gguf", "packed"])
def test_the_tied_table_is_one_object(
    files: dict[str, Path], form: str, load_mode: LoadMode
) -> None:
    """The head adds no bytes: it is the embedding."""
    checkpoint = open_checkpoint(files[form], load_mode=load_mode)
    ops = load_ops("cpu", threads=1)
    loaded = load_model(read_config(checkpoint), checkpoint, ops, "disk")
    head = loaded.model.head  # type: ignore[attr-defined]
    assert head.output_table is head.embedding
    held = loaded.held_bytes()
    assert "output" not in held
    is_mapped = form == "packed" and load_mode == "mmap"
    assert (held["token_embd"] == 0) is is_mapped
    checkpoint.close()


def test_inspect_shows_the_plan(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    plans = {}
    for form in ("gguf", "packed"):
        path = files[form]
        assert main(["inspect", str(path), "--ctx", "64", "--json"]) == 0
        plans[form] = json.loads(capsys.readouterr().out.splitlines()[-1])["plan"]
        assert main(["inspect", str(path), "--ctx", "64"]) == 0
        assert "a context of 64 tokens fits" in capsys.readouterr().out
    gguf, packed = plans["gguf"], plans["packed"]
    weights = ("token table", "layers")
    groups = {
        form: {g["name"]: g for g in plan["groups"] if g["name"] in weights}
        for form, plan in plans.items()
    }
    for name in weights:
        own, mapped = groups["gguf"][name], groups["packed"][name]
        assert own["mapped_bytes"] == 0 < mapped["mapped_bytes"]
        assert mapped["private_bytes"] + mapped["mapped_bytes"] == own["private_bytes"]
    names = {g["name"] for g in gguf["groups"]}
    assert names >= {"workspace", "huge pages", "metadata", "tokenizer", "program"}
    assert "huge pages" not in {g["name"] for g in packed["groups"]}
    table = next(g for g in gguf["groups"] if g["name"] == "per-layer table")
    assert table["by_row_bytes"] == table["file_bytes"] > 0 == table["private_bytes"]


def test_what_cannot_fit_is_refused_with_what_would(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(path: Path, num_bytes: int, **options: Any) -> str:
        monkeypatch.setattr(system, "available_bytes", lambda: num_bytes)

        def no_loading(*args: object) -> None:
            raise AssertionError("refused only after loading had begun")

        monkeypatch.setattr("culet.llm.facade.load_model", no_loading)
        with pytest.raises(culet.CapacityError) as error:
            culet.load(path, **options)
        return str(error.value)

    config = read_config(open_checkpoint(files["gguf"]))
    reserve = reserved_bytes(config, EngineConfig(64))
    # Less than the weights: only mapping them helps.
    assert "a packed file (`culet pack`)" in refusal(files["gguf"], reserve + 15 * MIB)
    # The table in memory is what is too much.
    message = refusal(files["packed"], reserve + 8 * MIB, load_mode="none", context_length=64)
    assert "--load-mode mmap --embed-weights disk" in message
    assert f"does not fit: of the {(reserve + 8 * MIB) // MIB} MiB available" in message
    # Nothing helps.
    assert "no option makes it fit" in refusal(files["packed"], 10 * MIB)
    # The context alone is too long.
    reserve = reserved_bytes(config, EngineConfig(131072))
    message = refusal(files["packed"], reserve + 4 * MIB, context_length=131072)
    assert "the KV cache of 131072 tokens does not fit in memory" in message
    assert "tokens would" in message
    # What was asked for is too much, though less would do.
    message = refusal(files["packed"], reserve + 40 * MIB, kv_bytes=1 << 40, context_length=4096)
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
