"""The engine's promises to a caller: iteration, faults that stay where they belong, limits."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from random_model import VOCAB, tiny_model

from culet.engine.config import EngineConfig
from culet.engine.engine import Engine
from culet.engine.request import EnginePrompt, MediaSpan, SamplingParams
from culet.engine.sampler import log_softmax
from culet.engine.scheduler import Want
from culet.errors import BackendError, CapacityError, ModelFileError, RequestError, UsageError
from culet.models.base import Step, StepOutput

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
CONFIG = EngineConfig(
    context_length=128, max_seqs=4, prefill_tokens=32, page_tokens=16, max_waiting=6
)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


class Slow:
    """The tiny model, as slow as asked for, failing where told to."""

    def __init__(self) -> None:
        self.model, self.ops = tiny_model()
        self.config = self.model.config
        self.delay_s = 0.0
        self.poison: int | None = None

    def forward(self, step: Step, kv: object) -> StepOutput:
        time.sleep(self.delay_s)
        if self.poison in step.token_ids:
            raise ValueError("poisoned")
        return self.model.forward(step, kv)


def make(**changes: object) -> tuple[Engine, Slow]:
    model = Slow()
    return Engine(model, model.ops, replace(CONFIG, **changes)), model


def test_sync_and_async_iteration_see_the_same() -> None:
    engine, _ = make()
    with engine:
        deltas = list(engine.submit(EnginePrompt(prompt(20)), GREEDY))
        assert len(deltas) == 12
        assert [d.finish_reason for d in deltas] == [None] * 11 + ["length"]

        async def gather() -> list[list[object]]:
            async def one() -> list[object]:
                return [d async for d in engine.submit(EnginePrompt(prompt(20)), GREEDY)]

            return await asyncio.gather(*(one() for _ in range(5)))

        assert asyncio.run(gather()) == [deltas] * 5


def test_an_event_loop_that_went_away_harms_nobody() -> None:
    engine, model = make()
    model.delay_s = 0.01
    with engine:
        handle = engine.submit(EnginePrompt(prompt(20)), GREEDY)

        async def look_once() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(handle.__anext__(), 0.001)

        asyncio.run(look_once())
        assert len(handle.result()[0].token_ids) == 12


def test_usage_counts_what_was_cached() -> None:
    engine, _ = make()
    with engine:
        for cached in (0, 49):
            handle = engine.submit(EnginePrompt(prompt(50)), GREEDY)
            next(handle)
            assert handle.usage.cached_tokens == cached
            handle.result()
            assert (handle.usage.prompt_tokens, handle.usage.completion_tokens) == (50, 12)
        assert engine.metrics.cached_tokens.value == 49
        assert engine.metrics.prompt_tokens.value == 51
        assert engine.metrics.first_token_seconds.count == 2
        assert engine.metrics.inter_token_seconds.count == 22


def test_stop_tokens_and_ignoring_them() -> None:
    engine, _ = make()
    with engine:
        whole = engine.submit(EnginePrompt(prompt(9)), GREEDY).result()[0].token_ids
        stop = whole[5]
        cut = whole[: whole.index(stop)]
        submit = engine.submit
        (answer,) = submit(EnginePrompt(prompt(9)), GREEDY, eos_ids={stop}).result()
        assert (answer.token_ids, answer.finish_reason) == (cut, "stop")
        own = replace(GREEDY, stop_token_ids=(stop,), ignore_eos=True)
        (answer,) = submit(EnginePrompt(prompt(9)), own).result()
        assert (answer.token_ids, answer.finish_reason) == (cut, "stop")
        ignoring = replace(GREEDY, ignore_eos=True)
        (answer,) = submit(EnginePrompt(prompt(9)), ignoring, eos_ids={stop}).result()
        assert answer.token_ids == whole


def test_choices_differ_and_come_again() -> None:
    engine, _ = make()
    params = SamplingParams(max_tokens=10, n=3, seed=4)
    with engine:
        handle = engine.submit(EnginePrompt(prompt(40)), params)
        answers = [a.token_ids for a in handle.result()]
        assert len({tuple(a) for a in answers}) == 3
        assert handle.usage.completion_tokens == 30
        again = engine.submit(EnginePrompt(prompt(40)), params).result()
        assert [a.token_ids for a in again] == answers
        (first,) = engine.submit(EnginePrompt(prompt(40)), replace(params, n=1)).result()
        assert first.token_ids == answers[0]


def test_one_choice_can_be_stopped() -> None:
    engine, model = make()
    model.delay_s = 0.005
    with engine:
        handle = engine.submit(EnginePrompt(prompt(8)), replace(GREEDY, n=2, temperature=1.0))
        next(handle)
        handle.stop(1)
        reasons = [a.finish_reason for a in handle.result()]
        assert reasons == ["length", "stop"]


def test_prompt_logprobs_and_prompt_rows() -> None:
    """They equal the logits of all rows, come with a cold and a warm cache, and cost all rows."""
    engine, _ = make()
    ids = prompt(60, seed=3)
    with engine:
        for _ in range(2):
            parts: dict[int, NDArray[np.float32]] = {}
            hidden: dict[int, NDArray[np.float32]] = {}
            no_tokens = SamplingParams(max_tokens=0)
            engine.submit(
                EnginePrompt(ids),
                no_tokens,
                prompt_want=Want.LOGITS,
                sink=lambda at, rows, parts=parts: parts.update({at: rows.copy()}),
            ).result()
            engine.submit(
                EnginePrompt(ids),
                no_tokens,
                prompt_want=Want.HIDDEN,
                sink=lambda at, rows, hidden=hidden: hidden.update({at: rows.copy()}),
            ).result()
            assert list(parts) == list(hidden) == sorted(parts)
            logits = np.concatenate(list(parts.values()))
            assert logits.shape == (60, VOCAB)
            assert np.concatenate(list(hidden.values())).shape == (60, 32)
            handle = engine.submit(EnginePrompt(ids), replace(GREEDY, prompt_logprobs=2))
            (answer,) = handle.result()
            assert handle.usage.cached_tokens == 0
            assert answer.token_ids[0] == int(logits[-1].argmax())
            found = handle.prompt_logprobs
            assert found is not None and [f.token_id for f in found] == ids
            assert found[0].logprob is None
            for row, token in zip(logits[:-1], found[1:], strict=True):
                expected = log_softmax(row)
                assert token.logprob == expected[token.token_id]
                assert token.top[0] == (int(row.argmax()), float(expected.max()))


def test_media_rows_take_the_place_of_embeddings() -> None:
    engine, _ = make()
    ids = prompt(40)
    ids[10:20] = [0] * 10

    def ask(seed: int, picture: int) -> tuple[list[int], int]:
        embeddings = np.random.default_rng(seed).normal(0, 2, (10, 32)).astype(np.float32)
        span = MediaSpan(10, embeddings, digest=b"picture %d" % picture)
        handle = engine.submit(EnginePrompt(ids, (span,)), GREEDY)
        return handle.result()[0].token_ids, handle.usage.cached_tokens

    with engine:
        first, cached = ask(1, 1)
        assert cached == 0
        assert ask(1, 1) == (first, 39)
        other, cached = ask(2, 2)
        assert cached == 10  # up to the picture
        assert other != first


# ---- faults ------------------------------------------------------------------------------------
class BrokenMask:
    def apply(self, logits: NDArray[np.float32]) -> None:
        raise ZeroDivisionError("in the grammar")

    def accept(self, token_id: int) -> None: ...


def test_a_fault_in_one_request_ends_only_that_one(caplog: pytest.LogCaptureFixture) -> None:
    engine, model = make()
    model.poison = 639
    clean = [p for seed in range(4) if 639 not in (p := prompt(30, seed))]
    with engine:
        expected = [engine.submit(EnginePrompt(p), GREEDY).result()[0].token_ids for p in clean]
        engine.clear_prefix_cache()
        good = [engine.submit(EnginePrompt(p), GREEDY) for p in clean]
        bad_mask = engine.submit(EnginePrompt(prompt(5)), GREEDY, mask=BrokenMask)
        poisoned = engine.submit(EnginePrompt([639, 1, 2]), GREEDY)
        for handle, tokens in zip(good, expected, strict=True):
            assert handle.result()[0].token_ids == tokens
        with pytest.raises(BackendError, match="in the grammar"):
            bad_mask.result()
        with pytest.raises(BackendError, match="poisoned"):
            list(poisoned)
        assert engine.metrics.requests_failed.value == 2
        engine.clear_prefix_cache()
        assert all(not p.num_used for p in engine.cache.pages.pools.values())
    assert "ZeroDivisionError" in caplog.text


def test_what_cannot_run_is_refused() -> None:
    engine, _ = make()
    with engine:
        for ids, error, words in (
            ([], RequestError, "at least 1"),
            ([VOCAB], RequestError, f"{VOCAB} is no token"),
            ([-1], RequestError, "-1 is no token"),
            ([1] * 128, CapacityError, "context of 128"),
        ):
            with pytest.raises(error, match=words):
                engine.submit(EnginePrompt(ids), GREEDY)
        with pytest.raises(RequestError, match="no token"):
            engine.submit(EnginePrompt([1]), replace(GREEDY, logit_bias={VOCAB: 1.0}))
        (answer,) = engine.submit(EnginePrompt([1] * 127), GREEDY).result()
        assert (len(answer.token_ids), answer.finish_reason) == (1, "length")


def test_a_full_queue_refuses_with_its_limit() -> None:
    engine, model = make()
    model.delay_s = 0.02
    with engine:
        handles = []
        with pytest.raises(CapacityError, match="room for 6"):
            for seed in range(100):
                handles.append(engine.submit(EnginePrompt(prompt(9, seed)), GREEDY))
        assert 6 <= len(handles) <= 11
        assert engine.metrics.requests_refused.value == 1
        for handle in handles:
            assert len(handle.result()[0].token_ids) == 12


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    engine, model = make(max_seqs=1)
    model.delay_s = 0.02
    with engine:
        running = engine.submit(EnginePrompt(prompt(9)), GREEDY, timeout_s=0.1)
        waiting = engine.submit(EnginePrompt(prompt(9, 1)), GREEDY, timeout_s=0.01)
        (answer,) = running.result()
        assert answer.finish_reason == "deadline"
        assert 0 < len(answer.token_ids) < 12
        (answer,) = waiting.result()
        assert (answer.token_ids, answer.finish_reason) == ([], "deadline")


def test_priority_goes_first() -> None:
    engine, model = make(max_seqs=1)
    model.delay_s = 0.005
    ended: list[str] = []
    with engine:
        first = engine.submit(EnginePrompt(prompt(9)), GREEDY)
        later = {
            "low": engine.submit(EnginePrompt(prompt(9, 1)), GREEDY),
            "high": engine.submit(EnginePrompt(prompt(9, 2)), GREEDY, priority=1),
        }
        threads = [
            threading.Thread(target=lambda n=name: (later[n].result(), ended.append(n)))
            for name in later
        ]
        for thread in threads:
            thread.start()
        first.result()
        for thread in threads:
            thread.join()
    assert ended == ["high", "low"]


def test_a_long_prompt_does_not_stall_a_stream() -> None:
    """Between two tokens of a stream lies one step, of so many prompt rows at most."""
    engine, _ = make(mixed_prefill_tokens=8)
    with engine:
        stream = engine.submit(EnginePrompt(prompt(4)), replace(GREEDY, max_tokens=30))
        next(stream)
        long = engine.submit(EnginePrompt(prompt(100, 1)), replace(GREEDY, max_tokens=1))
        long.result()
        assert len(list(stream)) == 29
        rows = engine.metrics.step_rows
        assert sum(rows.counts[rows.edges.index(16) + 1 :]) <= 3  # only once the stream was over


# ---- the end -----------------------------------------------------------------------------------
def test_closing_cancels_or_drains() -> None:
    for drain, expected in ((False, "cancelled"), (True, "length")):
        engine, model = make()
        model.delay_s = 0.01
        handles = [engine.submit(EnginePrompt(prompt(9, seed)), GREEDY) for seed in range(6)]
        engine.close(drain=drain)
        assert {handle.result()[0].finish_reason for handle in handles} == {expected}
        assert not engine._thread.is_alive()
        engine.close()
        with pytest.raises(UsageError, match="closed"):
            engine.submit(EnginePrompt([1]), GREEDY)


def test_leaving_the_block_cancels() -> None:
    engine, model = make()
    model.delay_s = 0.01
    with engine:
        with engine.submit(EnginePrompt(prompt(9)), GREEDY) as handle:
            next(handle)
        assert handle.result()[0].finish_reason == "cancelled"
        handle.cancel()
        with pytest.raises(TimeoutError, match="not ended"):
            engine.submit(EnginePrompt(prompt(9)), GREEDY).result(timeout=0.001)


def test_a_fault_of_the_engine_itself_reaches_everybody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = make()

    def fail() -> None:
        raise RuntimeError("broken plan")

    monkeypatch.setattr(engine._scheduler, "plan", fail)
    handle = engine.submit(EnginePrompt([1]), GREEDY)
    with pytest.raises(BackendError, match="broken plan"):
        handle.result()
    with pytest.raises(BackendError, match="broken plan"):
        engine.submit(EnginePrompt([1]), GREEDY)
    engine.close()
    assert "broken plan" in caplog.text


def test_weights_that_are_no_longer_what_they_were_end_everything() -> None:
    """Checked before the results of a step count: no token of a step that may be wrong gets out."""
    model = Slow()
    model.delay_s = 0.002
    changed = threading.Event()

    def check() -> None:
        if changed.is_set():
            raise ModelFileError("m.gguf: was written to")

    engine = Engine(model, model.ops, CONFIG, check=check)
    with engine:
        one, other = (engine.submit(EnginePrompt(prompt(20, s)), GREEDY) for s in (1, 2))
        next(one)
        changed.set()
        for handle in (one, other):
            with pytest.raises(ModelFileError, match="was written to"):
                handle.result(timeout=60)
        with pytest.raises(ModelFileError, match="was written to"):
            engine.submit(EnginePrompt(prompt(20)), GREEDY)
        assert isinstance(engine.failed_with, ModelFileError)


def test_a_thread_that_the_system_does_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(CapacityError, match=r"allows no further thread \(can't start new thread\)"):
        make()
