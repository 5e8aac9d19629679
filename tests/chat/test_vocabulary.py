"""What files say about their tokens: roles by spelling, stops, repairs, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken

from culet.chat.tokenizer import Tokenizer
from culet.errors import ModelFileError, UnsupportedModelError
from support.toy_vocabularies import (
    CONTROL,
    GEMMA4_CONTROL,
    NORMAL,
    USER_DEFINED,
    gemma3_metadata,
    gemma3_oracle,
    gemma4_metadata,
    gemma4_oracle,
    gemma4_tables,
    odd_texts,
)

TEXTS = odd_texts(200, 11, GEMMA4_CONTROL)


@pytest.fixture
def metadata() -> dict[str, Any]:
    return gemma4_metadata()


def spelled_stops(tokenizer: Tokenizer) -> set[str]:
    return {tokenizer.token_bytes(i).decode() for i in tokenizer.stop_ids}


def write_folder(folder: Path, **changes: Any) -> dict[str, Any]:
    """A folder with the toy vocabulary's tokenizer.json; `changes` go into its model."""
    oracle = gemma4_oracle(*gemma4_tables(), GEMMA4_CONTROL)
    content: dict[str, Any] = json.loads(oracle.to_str())
    content["model"] |= changes
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return content


def test_ollama_form_is_recognised_by_its_pieces(metadata: dict[str, Any]) -> None:
    expected = Tokenizer.from_gguf(metadata)
    num_pieces = len(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.model"] = "llama"
    metadata["tokenizer.ggml.pre"] = "gemma4"
    metadata["tokenizer.ggml.scores"] = np.arange(num_pieces, dtype=np.float32)
    repaired = Tokenizer.from_gguf(metadata)
    assert [repaired.encode(t) for t in TEXTS] == [expected.encode(t) for t in TEXTS]
    assert len(repaired.notes) == 1 and "merge by rank" in repaired.notes[0]
    assert expected.notes == ()


@pytest.mark.parametrize("model", ["gemma4", "llama"])
@pytest.mark.parametrize("empty", [True, False])
def test_gemma4_pieces_without_merges_are_refused(
    metadata: dict[str, Any], model: str, empty: bool
) -> None:
    metadata["tokenizer.ggml.model"] = model
    if empty:
        metadata["tokenizer.ggml.merges"] = []
    else:
        del metadata["tokenizer.ggml.merges"]
    with pytest.raises(ModelFileError, match=r"m\.gguf: tokenizer\.ggml\.merges is missing"):
        Tokenizer.from_gguf(metadata, "m.gguf")


def test_types_are_put_right_by_spelling(metadata: dict[str, Any]) -> None:
    expected = Tokenizer.from_gguf(metadata)
    types = metadata["tokenizer.ggml.token_type"]
    for spelled, token_type in (
        ("<eos>", NORMAL),
        ("<|turn>", USER_DEFINED),
        ("<|channel>", USER_DEFINED),
        ("\n\n", CONTROL),
        ("\u2581\u2581", CONTROL),
    ):
        types[expected.id_of(spelled)] = token_type
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.control_tokens == expected.control_tokens
    assert [tokenizer.encode(t) for t in TEXTS] == [expected.encode(t) for t in TEXTS]
    assert tokenizer.notes == (
        "token types put right by spelling: 1 control tokens, 2 pieces of text",
    )


def test_files_without_types_or_special_ids(metadata: dict[str, Any]) -> None:
    expected = Tokenizer.from_gguf(metadata)
    for key in ("token_type", "bos_token_id", "eos_token_id", "unknown_token_id", "scores"):
        del metadata[f"tokenizer.ggml.{key}"]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (expected.bos_id, expected.eos_id) == (2, 1)
    assert tokenizer.control_tokens == expected.control_tokens
    assert [tokenizer.encode(t) for t in TEXTS] == [expected.encode(t) for t in TEXTS]


def test_bos_and_eos_come_from_the_vocabulary(metadata: dict[str, Any]) -> None:
    metadata["tokenizer.ggml.bos_token_id"] = 40
    metadata["tokenizer.ggml.add_bos_token"] = False
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.bos_id == 2
    assert tokenizer.encode("x")[0] == 2


def test_stops_are_found_by_spelling(metadata: dict[str, Any]) -> None:
    assert spelled_stops(Tokenizer.from_gguf(metadata)) == {"<eos>", "<turn|>", "<|tool_response>"}
    three = Tokenizer.from_gguf(gemma3_metadata(gemma3_oracle()))
    assert spelled_stops(three) == {"<eos>", "<end_of_turn>"}


def test_strike_through_is_no_stop() -> None:
    metadata = gemma3_metadata(gemma3_oracle())
    tag_id = metadata["tokenizer.ggml.tokens"].index(b"</s>")
    metadata["tokenizer.ggml.eot_token_id"] = tag_id
    metadata["tokenizer.ggml.token_type"][tag_id] = CONTROL
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tag_id not in tokenizer.stop_ids
    assert tokenizer.encode("<s>x</s>", add_bos=False)[-1] == tag_id
    assert tokenizer.decode([tag_id]) == "</s>"
    assert any(str(tag_id) in note for note in tokenizer.notes)


def test_declared_stops_are_added(metadata: dict[str, Any]) -> None:
    think = metadata["tokenizer.ggml.tokens"].index(b"<|think|>")
    metadata["tokenizer.ggml.eot_token_id"] = think
    assert think in Tokenizer.from_gguf(metadata).stop_ids


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", None, "the key tokenizer.ggml.model is missing"),
        ("tokens", None, "the key tokenizer.ggml.tokens is missing"),
        ("token_type", np.ones(3, np.int32), "token_type holds 3 values for"),
        ("bos_token_id", 10**6, "bos_token_id is 1000000, not an id from 0 to"),
        ("eos_token_id", -7, "eos_token_id is -7, not an id from 0 to"),
        ("eos_token_id", "1", "eos_token_id is '1', not an id from 0 to"),
        ("tokens", np.ones(9), "tokenizer.ggml.tokens is ndarray, not an array of strings"),
        ("tokens", 5, "tokenizer.ggml.tokens is int, not an array of strings"),
        ("merges", "x", "tokenizer.ggml.merges is str, not an array of strings"),
        ("token_type", [b"x"], "token_type is list, not an array of numbers"),
        ("merges", [b"a b", b"q\xff q"], "merge 1 does not join two pieces"),
        ("merges", [b"ab"], "merge 0 does not join two pieces"),
        ("merges", [b""], "merge 0 does not join two pieces"),
    ],
)
def test_damaged_metadata_is_named(
    metadata: dict[str, Any], key: str, value: Any, message: str
) -> None:
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    else:
        metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ModelFileError, match=message) as caught:
        Tokenizer.from_gguf(metadata, "m.gguf")
    assert str(caught.value).startswith("m.gguf: ")


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (None, "the key tokenizer.ggml.scores is missing"),
        (np.zeros(5, np.float32), "scores holds 5 values for"),
        (float("nan"), "a score is not a number"),
    ],
)
def test_damaged_scores_are_named(scores: Any, message: str) -> None:
    metadata = gemma3_metadata(gemma3_oracle())
    if isinstance(scores, float):
        scores = np.full(len(metadata["tokenizer.ggml.tokens"]), scores, np.float32)
    metadata["tokenizer.ggml.scores"] = scores  # a missing key reads as None
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_gguf(metadata)


def test_vocabularies_without_bytes_need_an_unknown_piece() -> None:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [b"<eos>", b"<bos>", b"a"],
        "tokenizer.ggml.scores": np.zeros(3, np.float32),
    }
    with pytest.raises(ModelFileError, match="neither the piece <0x00> nor an unknown piece"):
        Tokenizer.from_gguf(metadata)
    metadata["tokenizer.ggml.tokens"].append(b"<unk>")
    metadata["tokenizer.ggml.scores"] = np.zeros(4, np.float32)
    assert Tokenizer.from_gguf(metadata).encode("ab") == [1, 2, 3]


def test_other_tokenizers_are_refused(metadata: dict[str, Any]) -> None:
    metadata["tokenizer.ggml.model"] = "gpt2"
    metadata["tokenizer.ggml.tokens"] = [b"<bos>", b"<eos>", b"a"]
    with pytest.raises(UnsupportedModelError, match="tokenizer.ggml.model is 'gpt2'"):
        Tokenizer.from_gguf(metadata)


def test_folder_and_gguf_give_the_same_ids(tmp_path: Path, metadata: dict[str, Any]) -> None:
    write_folder(tmp_path)
    from_folder, from_gguf = Tokenizer.from_folder(tmp_path), Tokenizer.from_gguf(metadata)
    for special in (True, False):
        for text in TEXTS:
            ids = from_folder.encode(text, parse_special=special)
            assert ids == from_gguf.encode(text, parse_special=special)
    assert from_folder.stop_ids == from_gguf.stop_ids
    assert from_folder.spelling == from_gguf.spelling


def test_merges_of_a_folder_may_be_strings_or_pairs(tmp_path: Path) -> None:
    content = write_folder(tmp_path)
    expected = Tokenizer.from_folder(tmp_path)
    pairs = content["model"]["merges"]
    content["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in pairs]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert [tokenizer.encode(t) for t in TEXTS] == [expected.encode(t) for t in TEXTS]


def test_added_text_pieces_are_taken_whole(tmp_path: Path) -> None:
    content = write_folder(tmp_path)
    new_id = max(content["model"]["vocab"].values()) + 3  # leaves ids that no piece has
    content["added_tokens"].append(
        {"id": new_id, "content": "[new words]", "special": False, "normalized": False}
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("a[new words]b").count(new_id) == 1
    assert tokenizer.decode([new_id]) == "[new words]"
    assert tokenizer.decode([new_id - 1]) == ""


def test_added_space_runs_are_matched_as_tokenizers_does(tmp_path: Path) -> None:
    oracle = gemma4_oracle(*gemma4_tables(), GEMMA4_CONTROL)
    added = [AddedToken(t, normalized=False) for t in ("\u2581\u2581", "a b", "\n\n", "<b>")]
    oracle.add_tokens(added)
    oracle.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text in [*TEXTS, "a b", "a\u2581b", " \u2581\u2581  \u2581 ", "x   \u2581\u2581\u2581y"]:
        ids = tokenizer.encode(text, add_bos=False, parse_special=True)
        assert ids == oracle.encode(text, add_special_tokens=False).ids, repr(text)


def test_stops_of_a_folder(tmp_path: Path) -> None:
    write_folder(tmp_path)
    think = GEMMA4_CONTROL.index("<|think|>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, think]}))
    assert think in Tokenizer.from_folder(tmp_path).stop_ids
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(ModelFileError, match="generation_config.json: eos_token_id is 'x'"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab": []}, "model.vocab is not an object"),
        ({"vocab": {"a": "b"}}, "the id of piece 'a' is 'b'"),
        ({"vocab": {"a": 1 << 40}}, "the id of piece 'a' is"),
        ({"merges": None}, "model.merges is missing or empty"),
        ({"merges": [["a", 1]]}, r"model.merges\[0\] is not a pair"),
        ({"merges": [["zz", "qq"]]}, "merge 0 does not join"),
        ({"type": "Unigram"}, "model.type is not Gemma's"),
        ({"byte_fallback": False}, "model.byte_fallback is not Gemma's"),
        ({"ignore_merges": True}, "model.ignore_merges is not Gemma's"),
    ],
)
def test_damaged_folders_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_folder(tmp_path, **changes)
    with pytest.raises(ModelFileError, match=message) as caught:
        Tokenizer.from_folder(tmp_path)
    assert "tokenizer.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff", "[" * 100_000])
def test_files_that_are_no_json_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelFileError, match="tokenizer.json"):
        Tokenizer.from_folder(tmp_path)


def test_folders_without_a_tokenizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="tokenizer.json: no such file"):
        Tokenizer.from_folder(tmp_path)
