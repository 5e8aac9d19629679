"""Hugging Face folders as packed files: the same answers; and quantising on the way."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import culet
from culet.cli.main import main
from culet.errors import UsageError
from culet.formats.opening import open_checkpoint
from culet.llm.conversion import plan_conversion
from culet.llm.packing import pack_model, unpack_model
from culet.quant.blocks import decode

NAMES = [
    "e-series",
    "dense, k = v, fewer global heads",
    "mixture of experts",
    "odd sizes",
    "no soft cap",
    "gemma 3, scaled rope",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models as folders with a tokenizer, weights in float32."""
    pytest.importorskip("torch")
    from support.tiny_models import CONFIGS, Tiny, make_model, save_hf
    from support.toy_vocabularies import GEMMA4_CONTROL, gemma4_oracle, gemma4_tables

    pieces, merges = gemma4_tables()
    oracle = gemma4_oracle(pieces, merges, GEMMA4_CONTROL).to_str()
    root = tmp_path_factory.mktemp("folders")
    made = {}
    for name in NAMES:
        tiny = next(t for t in CONFIGS if t.name == name)
        sizes: dict[str, Any] = {"vocab_size": len(pieces)}
        if tiny.architecture == "gemma4":
            sizes["vocab_size_per_layer_input"] = len(pieces)
        model = make_model(Tiny(name, tiny.architecture, dict(tiny.values) | sizes))
        folder = save_hf(model, root / str(NAMES.index(name)))
        (folder / "tokenizer.json").write_text(oracle)
        (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
        (folder / "generation_config.json").write_text(
            json.dumps({"temperature": 0.5, "top_k": 7, "top_p": 0.25})
        )
        made[name] = folder
    return made


def logits(path: Path, text: str = "the fox and a dog") -> NDArray[np.float32]:
    with culet.load(path, context_length=64, max_seqs=1, threads=2) as llm:
        return llm.logits(llm.tokenizer.encode(text))


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_and_its_packed_file_answer_alike(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    packed = tmp_path / "m.culet"
    pack_model(folders[name], packed, 2)
    np.testing.assert_array_equal(logits(packed), logits(folders[name]))
    with (
        culet.load(packed, context_length=64) as a,
        culet.load(folders[name], context_length=64) as b,
    ):
        for text in ("the fox\n\n and <|turn>user", "é 日本 🙂", "<table> </s>"):
            assert a.tokenizer.encode(text, parse_special=True) == b.tokenizer.encode(
                text, parse_special=True
            )
        assert a.tokenizer.stop_ids == b.tokenizer.stop_ids
        assert a.defaults == b.defaults
        messages = [{"role": "user", "content": "the fox"}]
        options: dict[str, Any] = {"max_tokens": 5, "temperature": 0}
        assert a.chat(messages, **options).text == b.chat(messages, **options).text


def test_unpacking_gives_a_gguf_that_serves(folders: dict[str, Path], tmp_path: Path) -> None:
    packed, back = tmp_path / "m.culet", tmp_path / "m.gguf"
    pack_model(folders["e-series"], packed, 2)
    unpack_model(packed, back)
    np.testing.assert_array_equal(logits(back), logits(folders["e-series"]))
    again = tmp_path / "again.culet"
    pack_model(back, again, 2)
    np.testing.assert_array_equal(logits(again), logits(packed))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file in float32 whose rows take every type."""
    pytest.importorskip("torch")
    from support.tiny_models import Tiny, make_model, save_gguf
    from support.toy_vocabularies import gemma4_metadata

    vocabulary = gemma4_metadata()
    count = len(vocabulary["tokenizer.ggml.tokens"])
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 256,
        "hidden_size_per_layer_input": 128,
        "head_dim": 64,
        "global_head_dim": 64,
        "vocab_size": count,
        "vocab_size_per_layer_input": count,
        "num_hidden_layers": 6,
    }
    model = make_model(Tiny("wide", "gemma4", sizes))
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        vocabulary[key] = [p.decode("utf-8", "surrogateescape") for p in vocabulary[key]]
    return save_gguf(model, tmp_path_factory.mktemp("wide") / "wide.gguf", metadata=vocabulary)


@pytest.mark.parametrize("type_name", ["q8_0", "q6_k", "q5_k", "q4_k", "q4_0"])
def test_types_after_quantising(type_name: str, wide: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.culet"
    pack_model(wide, out, 2, plan_conversion(type_name, None))
    before, packed = open_checkpoint(wide), open_checkpoint(out)
    table = "Q8_0" if type_name == "q8_0" else "Q6_K"
    for name, expected in {
        "blk.0.ffn_up.weight": type_name.upper(),
        "blk.5.attn_q.weight": type_name.upper(),
        "token_embd.weight": table,
        "per_layer_token_embd.weight": table,
        "blk.0.inp_gate.weight": table,
        "blk.0.proj.weight": "Q8_0",  # rows of 128 values are no whole K-quant block
        "per_layer_model_proj.weight": "F32",
        "blk.0.attn_norm.weight": "F32",
    }.items():
        assert packed.info(name).qtype.name == expected, name
    for name in ("per_layer_token_embd.weight", "token_embd.weight"):
        values, exact = decode(packed.tensor(name)), decode(before.tensor(name))
        # A code of 6 bits is within a step of the group's largest value: 1/31 of it.
        assert np.abs(values - exact).max() <= np.abs(exact).max() / 31
    assert np.isfinite(logits(out)).all()


def test_what_is_quantised_already_stays(
    wide: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, back, second = (tmp_path / n for n in ("a.culet", "a.gguf", "b.culet"))
    pack_model(wide, first, 2, plan_conversion("q8_0", None))
    unpack_model(first, back)
    assert "no matrix is quantised" not in caplog.text
    pack_model(back, second, 2, plan_conversion("q4_0", None))
    assert "no matrix is quantised" in caplog.text
    a, b = open_checkpoint(first), open_checkpoint(second)
    assert {n: a.info(n).qtype for n in a.tensor_names()} == {
        n: b.info(n).qtype for n in b.tensor_names()
    }
    np.testing.assert_array_equal(logits(first), logits(second))


def test_few_bits_for_tables_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "culet"):
        assert plan_conversion("q4_k", "q6_k").table_quant is not None
        assert not caplog.records
        plan_conversion("q4_k", "q4_k")
    assert "below 6 bits" in caplog.text
    with pytest.raises(UsageError, match="can't be quantised to"):
        plan_conversion("q2_k", None)
    with pytest.raises(UsageError, match="goes with a type for the rest"):
        plan_conversion(None, "q6_k")


def test_the_command(wide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, back = tmp_path / "m.culet", tmp_path / "m.gguf"
    assert main(["pack", str(wide), "-o", str(packed), "--type", "q4_0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["file_bytes"] == packed.stat().st_size < wide.stat().st_size
    assert main(["unpack", str(packed), "-o", str(back)]) == 0
    assert open_checkpoint(back).info("blk.0.ffn_up.weight").qtype.name == "Q4_0"
