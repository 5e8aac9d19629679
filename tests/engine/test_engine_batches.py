"""Many staggered requests give, each, what the same request gives alone, byte for byte."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from random_model import VOCAB, tiny_model

from culet.engine.config import EngineConfig
from culet.engine.engine import Engine
from culet.engine.handle import RequestHandle
from culet.engine.kv_cache import least_kv_bytes
from culet.engine.request import EnginePrompt, SamplingParams

NUM_REQUESTS = 48
CONFIG = EngineConfig(
    context_length=256, max_seqs=16, prefill_tokens=512, mixed_prefill_tokens=64, page_tokens=16
)


@dataclass(frozen=True)
class Asked:
    """One request of the crowd."""

    prompt: tuple[int, ...]
    params: SamplingParams

    def submit(self, engine: Engine) -> RequestHandle:
        return engine.submit(EnginePrompt(self.prompt), self.params)


def make_crowd() -> list[Asked]:
    """Different prompts and lengths, some with a common beginning, every kind of sampling."""
    rng = random.Random(7)
    shared = [rng.randrange(VOCAB) for _ in range(60)]
    kinds = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, top_k=64, top_p=0.95),
        SamplingParams(temperature=0.8, min_p=0.02, repetition_penalty=1.2),
        SamplingParams(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.3),
        SamplingParams(temperature=1.2, typical_p=0.9, logit_bias={3: 2.0, 5: -100.0}),
        SamplingParams(temperature=0.7, top_p=0.8, logprobs=2),
    ]
    crowd = []
    for index in range(NUM_REQUESTS):
        own = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 110)))
        begin = tuple(shared[: rng.randint(20, 60)]) if index % 3 == 0 else ()
        params = replace(
            kinds[index % len(kinds)], seed=index, max_tokens=rng.randint(64, 80), ignore_eos=True
        )
        crowd.append(Asked(begin + own, params))
    return crowd


CROWD = make_crowd()


def new_engine(threads: int = 2, **changes: object) -> Engine:
    model, ops = tiny_model(threads)
    return Engine(model, ops, replace(CONFIG, **changes))


def each_alone(**changes: object) -> list[list[int]]:
    """Each request by itself, without a cache."""
    with new_engine(max_seqs=1, prefix_cache=False, **changes) as engine:
        return [asked.submit(engine).result()[0].token_ids for asked in CROWD]


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    return each_alone()


def test_the_crowd_is_worth_comparing(alone: list[list[int]]) -> None:
    assert all(len(tokens) >= 64 for tokens in alone)
    assert len({tuple(tokens) for tokens in alone}) == NUM_REQUESTS
    assert sum(len(set(tokens)) > 5 for tokens in alone) > 40  # greedy text may run in circles


def in_order_of_arrival(seed: int) -> Iterator[tuple[int, Asked]]:
    """Requests at random moments, in random order."""
    rng = random.Random(seed)
    order = list(enumerate(CROWD))
    rng.shuffle(order)
    for item in order:
        time.sleep(rng.choice([0.0, 0.0, 0.0, 0.004, 0.02]))
        yield item


def least_bytes() -> int:
    """A cache in which barely one sequence fits, so that many are sent back."""
    model, _ = tiny_model()
    return int(least_kv_bytes(model.config, replace(CONFIG, prefill_tokens=64)) * 1.7)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"prefix_cache": False}, id="no cache"),
        pytest.param({"prefill_tokens": 17, "mixed_prefill_tokens": 16}, id="chunks of 16"),
        pytest.param({"prefill_tokens": 64, "mixed_prefill_tokens": 5}, id="chunks of 5 to 64"),
        pytest.param({"prefill_tokens": 64, "kv_bytes": least_bytes()}, id="few pages"),
        pytest.param(
            {"prefill_tokens": 64, "kv_bytes": least_bytes(), "prefix_cache": False},
            id="few pages, no cache",
        ),
    ],
)
def test_fault_155_156_a_request_in_a_crowd_is_the_request_alone(
    alone: list[list[int]], changes: dict[str, object]
) -> None:
    with new_engine(**changes) as engine:
        handles = {i: asked.submit(engine) for i, asked in in_order_of_arrival(seed=1)}
        for index, handle in handles.items():
            assert handle.result()[0].token_ids == alone[index], f"request {index}"
        if "kv_bytes" in changes:
            assert engine.metrics.preemptions.value > 0
        check_pages_come_free(engine)


def test_the_thread_count_changes_nothing(alone: list[list[int]]) -> None:
    with new_engine(threads=1) as engine:
        handles = [asked.submit(engine) for asked in CROWD]
        assert [handle.result()[0].token_ids for handle in handles] == alone


def test_quantised_kv_is_as_invariant(alone: list[list[int]]) -> None:
    expected = each_alone(kv_type="q8_0")
    assert expected != alone
    with new_engine(kv_type="q8_0", prefill_tokens=64) as engine:
        handles = {i: asked.submit(engine) for i, asked in in_order_of_arrival(seed=4)}
        for index, handle in handles.items():
            assert handle.result()[0].token_ids == expected[index], f"request {index}"


def test_fault_154_cancelling_a_third_leaves_the_others_untouched(alone: list[list[int]]) -> None:
    rng = random.Random(3)
    with new_engine(prefill_tokens=64, kv_bytes=least_bytes()) as engine:
        handles = {i: asked.submit(engine) for i, asked in in_order_of_arrival(seed=2)}
        doomed = rng.sample(sorted(handles), NUM_REQUESTS // 3)

        def cancel() -> None:
            for index in doomed:
                time.sleep(rng.random() * 0.03)
                handles[index].cancel()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        for index, handle in handles.items():
            (answer,) = handle.result()
            if answer.finish_reason == "cancelled":
                assert index in doomed
                assert answer.token_ids == alone[index][: len(answer.token_ids)]
            else:
                assert answer.token_ids == alone[index]
        canceller.join()
        check_pages_come_free(engine)


def check_pages_come_free(engine: Engine) -> None:
    """What is still held is the prefix cache's, and goes when that is cleared."""
    scheduler = engine._scheduler
    assert not list(scheduler.sequences())
    for pool in scheduler.pages.pools.values():
        assert pool.num_used == pool.num_evictable
        assert scheduler.cache is not None or pool.num_used == 0
    engine.clear_prefix_cache()
    assert all(pool.num_used == 0 for pool in scheduler.pages.pools.values())
    assert engine.metrics.full_pages_used.value == engine.metrics.sliding_pages_used.value == 0
