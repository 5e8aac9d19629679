"""The Python interface on a tiny model: what comes back, what is refused, what stays the same."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import culet
from culet.engine.config import EngineConfig
from culet.engine.sampler import log_softmax
from culet.formats.opening import open_checkpoint
from culet.llm.memory import reserved_bytes
from culet.models.registry import read_config

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[culet.LLM]:
    with culet.load(model_path, backend="reference") as loaded:
        yield loaded


def test_greedy_text_is_the_most_probable_token_each_time(llm: culet.LLM) -> None:
    answer = llm.generate("hello", max_tokens=8, temperature=0, ignore_eos=True)
    ids = llm.tokenizer.encode("hello")
    for token_id in answer.token_ids:
        assert token_id == int(np.argmax(llm.logits(ids)[-1]))
        ids.append(token_id)
    assert answer.text == llm.tokenizer.decode(answer.token_ids)
    assert answer.finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens == len(ids) - 8


def test_one_seed_gives_one_text(llm: culet.LLM) -> None:
    first = llm.generate("hello", max_tokens=12, seed=7)
    assert llm.generate("hello", max_tokens=12, seed=7).token_ids == first.token_ids
    others = {llm.generate("hello", max_tokens=12, seed=s).token_ids for s in range(8, 12)}
    assert len(others | {first.token_ids}) > 1
    unseeded = llm.generate("hello", max_tokens=12)
    again = llm.generate("hello", max_tokens=12, seed=unseeded.seed)
    assert again.token_ids == unseeded.token_ids


def test_streamed_pieces_are_the_whole(llm: culet.LLM) -> None:
    whole = llm.generate("hello", max_tokens=20, seed=1)
    pieces = list(llm.generate("hello", max_tokens=20, seed=1, stream=True))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert pieces[-1].completion == whole
    assert all(piece.completion is None for piece in pieces[:-1])


def test_a_stop_text_ends_the_answer_before_itself(llm: culet.LLM) -> None:
    whole = llm.generate("hello", max_tokens=20, temperature=0, ignore_eos=True).text
    stop = whole[5:8]
    cut = llm.generate("hello", max_tokens=20, temperature=0, ignore_eos=True, stop=stop)
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_a_stop_token_ends_the_answer_and_is_no_part_of_it(
    llm: culet.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = llm.generate("hello", max_tokens=9, temperature=0, ignore_eos=True)
    stop = whole.token_ids[4]
    monkeypatch.setattr(llm.tokenizer, "stop_ids", frozenset({stop}))
    answer = llm.generate("hello", max_tokens=9, temperature=0)
    assert answer.token_ids == whole.token_ids[: whole.token_ids.index(stop)]
    assert answer.finish_reason == "stop"
    assert answer.usage.completion_tokens == len(answer.token_ids) + 1


def test_logprobs_are_the_models_own(llm: culet.LLM) -> None:
    answer = llm.generate("hello", max_tokens=4, temperature=0.3, seed=3, logprobs=2)
    assert answer.logprobs is not None
    ids = llm.tokenizer.encode("hello")
    for token_id, reported in zip(answer.token_ids, answer.logprobs, strict=True):
        expected = log_softmax(llm.logits(ids)[-1])
        assert reported.logprob == expected[token_id]
        assert reported.top[0] == (int(np.argmax(expected)), float(expected.max()))
        assert len(reported.top) == 2
        ids.append(token_id)


def test_chat_renders_streams_and_joins(llm: culet.LLM) -> None:
    whole = llm.chat(MESSAGES, max_tokens=16, seed=2)
    pieces = list(llm.chat(MESSAGES, max_tokens=16, seed=2, stream=True))
    assert pieces[-1].completion == whole
    assert "".join(piece.text for piece in pieces) == whole.text
    assert "".join(piece.reasoning for piece in pieces) == whole.reasoning


def test_an_answer_may_fill_the_context_and_no_more(llm: culet.LLM) -> None:
    answer = llm.generate("hello", temperature=0, ignore_eos=True)
    assert answer.usage.total_tokens == llm.context_length
    assert answer.finish_reason == "length"
    ids = [5] * llm.context_length
    assert llm.logits(ids).shape[0] == llm.context_length
    with pytest.raises(culet.CapacityError, match=f"context of {llm.context_length}"):
        llm.logits([*ids, 5])
    with pytest.raises(culet.CapacityError, match="at least one more"):
        llm.generate("a b " * llm.context_length, stream=True)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_p": 2}, "top_p"),
        ({"min_p": float("nan")}, "min_p"),
        ({"seed": -1}, "seed"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"top_typo": 1}, "top_typo"),
    ],
)
def test_a_bad_option_is_refused_by_name(
    llm: culet.LLM, options: dict[str, object], field: str
) -> None:
    with pytest.raises(culet.RequestError) as caught:
        llm.generate("hello", **options)
    assert caught.value.field == field


def test_ids_that_are_no_tokens_are_refused(llm: culet.LLM) -> None:
    for ids in ([10**6], [-1], []):
        with pytest.raises(culet.RequestError, match="token_ids"):
            llm.logits(ids)


def test_response_format_binds_the_answer(llm: culet.LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer", "maximum": 9}},
        "required": ["kind", "n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    for seed in range(3):
        answer = llm.chat(MESSAGES, response_format=form, temperature=2, seed=seed, max_tokens=200)
        value = json.loads(answer.text)
        assert value["kind"] in ("a", "b") and value["n"] <= 9
        assert answer.finish_reason == "stop"


def test_an_unknown_response_format_is_refused_by_name(llm: culet.LLM) -> None:
    with pytest.raises(culet.RequestError, match="structural_tag"):
        llm.chat(MESSAGES, response_format={"type": "structural_tag"})


def test_what_needs_no_text_needs_no_tokenizer(bare_path: Path) -> None:
    with culet.load(bare_path, backend="reference", context_length=64) as llm:
        assert llm.logits([1, 2, 3]).shape == (3, 96)
        with pytest.raises(culet.ModelFileError, match=r"tokenizer\.ggml\.tokens"):
            llm.generate("hello")


def test_memory_is_reported_by_group(llm: culet.LLM) -> None:
    llm.generate("hello", max_tokens=1)
    report = llm.memory()
    groups = {group.name: group for group in report.groups}
    counted = {name for name, group in groups.items() if group.actual_bytes is not None}
    assert counted == {"token table", "per-layer table", "layers", "K/V, sliding", "K/V, full"}
    rest = {"workspace", "metadata", "tokenizer", "program"}
    assert set(groups) - counted - {"huge pages"} == rest
    for name in ("K/V, sliding", "K/V, full"):
        assert groups[name].planned_bytes == groups[name].actual_bytes > 0
    # The per-layer table is only ever read by row.
    assert groups["per-layer table"].actual_bytes == 0
    assert groups["token table"].planned_bytes == groups["token table"].actual_bytes
    assert report.planned_bytes == sum(group.planned_bytes for group in report.groups)


def test_context_follows_the_file_and_may_be_set(
    bare_path: Path, model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with culet.load(model_path, backend="reference") as llm:
        assert llm.context_length == 96
    with caplog.at_level(logging.INFO, "culet"):
        with culet.load(model_path, backend="reference", context_length=200) as llm:
            assert llm.context_length == 200
    assert "made for 96" in caplog.text


def test_a_context_that_does_not_fit_is_cut_or_refused(
    bare_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beside the reserve 1 MiB; a token of the bare model takes 128 bytes in its one full layer.
    config = read_config(open_checkpoint(bare_path))
    reserve = reserved_bytes(config, EngineConfig(config.context_length))
    monkeypatch.setattr("culet.system.available_bytes", lambda: reserve + (1 << 20))
    with caplog.at_level(logging.INFO, "culet"):
        with culet.load(bare_path, backend="reference") as llm:
            assert 64 <= llm.context_length < 131072
            assert f"to {llm.context_length} tokens" in caplog.text
            fitting = llm.context_length
    with pytest.raises(culet.CapacityError, match=f"{fitting} tokens would"):
        culet.load(bare_path, backend="reference", context_length=131072)
    monkeypatch.setattr("culet.system.available_bytes", lambda: 1 << 20)
    with pytest.raises(culet.CapacityError, match="does not fit"):
        culet.load(bare_path, backend="reference")


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "abacus"},
        {"precision": "some"},
        {"kv_type": "q1"},
        {"embed_weights": "cloud"},
        {"load_mode": "slow"},
        {"threads": 0},
        {"context_length": 0},
    ],
)
def test_options_that_do_not_exist_are_named(bare_path: Path, options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(culet.UsageError, match=name):
        culet.load(bare_path, **({"backend": "reference"} | options))


@pytest.mark.parametrize("load_mode", ["mmap", "none"])
@pytest.mark.parametrize("embed_weights", ["auto", "host", "disk"])
def test_where_the_table_lies_changes_nothing(
    llm: culet.LLM, model_path: Path, embed_weights: str, load_mode: str
) -> None:
    ids = llm.tokenizer.encode("hello there")
    with culet.load(
        model_path, backend="reference", embed_weights=embed_weights, load_mode=load_mode
    ) as other:
        np.testing.assert_array_equal(other.logits(ids), llm.logits(ids))


def test_importing_culet_takes_little_time() -> None:
    probe = (
        "import time; a = time.process_time(); import culet; b = time.process_time(); "
        "assert b - a < 0.3, b - a; import sys; assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_a_text_is_the_message_of_a_user(llm: culet.LLM) -> None:
    options = {"max_tokens": 4, "temperature": 0}
    told = llm.chat([{"role": "user", "content": "hello"}], **options)
    assert llm.chat("hello", **options).token_ids == told.token_ids


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: llm.chat({"role": "user"}), r"messages: must be a list such as \[\{"),
        (lambda llm: llm.generate(5), "text: must be a text or a list of texts, not int"),
        (lambda llm: llm.generate(b"x"), "text: must be a text or a list of texts, not bytes"),
        (
            lambda llm: llm.generate([{"role": "user"}]),
            r"text\[0\]: .*conversations are for `chat`",
        ),
        (lambda llm: llm.generate("x", temp=0), "temp: there is no such option; .*temperature"),
        (lambda llm: llm.logits("x"), "token_ids: must be whole numbers"),
        (lambda llm: llm.logits([1.5]), "token_ids: must be whole numbers"),
        (lambda llm: llm.logits([[1], [1, 2]]), "token_ids: must be whole numbers"),
    ],
)
def test_what_newcomers_try_is_refused_by_its_name(
    llm: culet.LLM, call: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(culet.RequestError, match=message):
        call(llm)


def test_a_load_that_is_wrong_is_told_before_any_work(model_path: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"chat_template": str(tmp_path / "none.jinja")}, "none.jinja: no such file"),
        ({"context_length": "64"}, "context_length is '64'; a whole number is needed"),
    ):
        with pytest.raises(culet.UsageError, match=message):
            culet.load(model_path, **options)
    with pytest.raises(culet.UsageError, match="owner/repo: no such file or folder"):
        culet.load("owner/repo")


def test_public_names_are_listed() -> None:
    assert {"load", "LLM", "__version__"} <= set(dir(culet))
