"""Many requests through the Python interface: lists of texts, choices, threads, the KV budget."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import culet
from culet.engine.sampler import log_softmax
from culet.llm import batch, progress

TEXTS = ["hello", "hello there", "a b c", "there", "hello hello hello"]


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[culet.LLM]:
    with culet.load(model_path, backend="reference", max_seqs=3) as loaded:
        yield loaded


def test_a_list_gives_what_its_texts_give_alone(llm: culet.LLM) -> None:
    alone = [llm.generate(text, max_tokens=10, seed=5) for text in TEXTS]
    together = llm.generate(TEXTS, max_tokens=10, seed=5)
    assert together == alone
    assert llm.generate([]) == []


def test_choices_come_in_order(llm: culet.LLM) -> None:
    answers = llm.generate(TEXTS[:2], n=3, max_tokens=8, seed=1)
    assert len(answers) == 6
    assert len({answer.token_ids for answer in answers[:3]}) == 3
    assert answers[3].token_ids == llm.generate(TEXTS[1], max_tokens=8, seed=1).token_ids
    with pytest.raises(culet.RequestError, match="list of texts"):
        llm.generate("hello", n=2)
    with pytest.raises(culet.RequestError, match="can't be streamed"):
        llm.generate(TEXTS, stream=True)


def test_a_bad_text_in_a_list_cancels_the_rest(llm: culet.LLM) -> None:
    before = llm.engine.metrics.requests_failed.value
    with pytest.raises(culet.CapacityError):
        llm.generate(["hello", "hello", "a b " * llm.context_length], max_tokens=50)
    llm.engine.clear_prefix_cache()  # after everything that was asked before it
    assert llm.engine.metrics.requests_failed.value == before
    assert llm.engine.metrics.running.value == 0


def test_a_long_list_is_submitted_as_the_queue_takes_it(
    llm: culet.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, most = llm.engine.submit, 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal most
        waiting = llm.engine.metrics.waiting.value + llm.engine.metrics.running.value
        most = max(most, int(waiting))
        return submit(*args, **options)

    monkeypatch.setattr(llm.engine, "submit", counted)
    monkeypatch.setattr(culet.llm.facade, "run_batch", lambda *a: batch.run_batch(*a[:3], 4))
    assert len(llm.generate(TEXTS * 8, max_tokens=2)) == 40
    assert most <= 4


def test_progress_is_shown_on_a_terminal_once_it_takes_long(
    llm: culet.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for patience, shown in ((0.0, True), (60.0, False)):
        monkeypatch.setattr(progress, "PATIENCE_SECONDS", patience)
        monkeypatch.setattr(sys, "stderr", Terminal())
        llm.generate(TEXTS, max_tokens=2)
        assert ("generating" in sys.stderr.getvalue()) == shown  # type: ignore[attr-defined]


def test_loading_shows_how_far_it_is(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with culet.load(model_path, backend="reference"):
        assert "loading" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_prompt_logprobs_are_those_of_the_prompt(llm: culet.LLM) -> None:
    answer = llm.generate("hello there", max_tokens=1, prompt_logprobs=2)
    ids = llm.tokenizer.encode("hello there")
    expected = [log_softmax(row) for row in llm.logits(ids)]
    assert answer.prompt_logprobs is not None
    assert [token.token_id for token in answer.prompt_logprobs] == ids[1:]
    for token, row in zip(answer.prompt_logprobs, expected, strict=False):
        assert token.logprob == row[token.token_id]
        assert len(token.top) == 2


def test_threads_share_one_model(llm: culet.LLM) -> None:
    expected = {text: llm.generate(text, max_tokens=10, seed=2) for text in TEXTS}
    found: dict[str, culet.Completion] = {}

    def ask(text: str) -> None:
        found[text] = llm.generate(text, max_tokens=10, seed=2)

    threads = [threading.Thread(target=ask, args=(text,)) for text in TEXTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_a_stop_text_ends_the_request_too(llm: culet.LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    whole = llm.generate("hello", **options).text
    llm.generate("hello", stop=whole[3:6], **options)
    llm.engine.clear_prefix_cache()
    assert llm.engine.metrics.running.value == 0


def test_the_kv_budget_is_kept(model_path: Path) -> None:
    with culet.load(model_path, backend="reference") as wide:
        most = wide.engine.cache.num_bytes
    with culet.load(model_path, backend="reference", kv_bytes=most // 2) as narrow:
        assert most // 4 < narrow.engine.cache.num_bytes <= most // 2
        kv = [g.actual_bytes for g in narrow.memory().groups if g.name.startswith("K/V")]
        assert sum(kv) == narrow.engine.cache.num_bytes
        texts = ["hello " * 15] * 20
        assert len({a.token_ids for a in narrow.generate(texts, max_tokens=30, seed=3)}) == 1
    with pytest.raises(culet.CapacityError, match="does not fit"):
        culet.load(model_path, backend="reference", kv_bytes=1000)
