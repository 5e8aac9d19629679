"""The sampler against plain float64 definitions, and the promises about seeds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from culet.engine.request import SamplingParams
from culet.engine.sampler import TokenSampler, describe, largest, log_softmax, uniform
from culet.errors import BackendError, RequestError

VOCAB = 3000


def random_logits(seed: int, size: int = VOCAB) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def slow_kept(logits: NDArray[np.float32], params: SamplingParams) -> dict[int, float]:
    """Kept tokens and their probabilities by the definitions, in float64 over everything."""
    z = logits.astype(np.float64) / params.temperature
    share = np.exp(z - z.max())
    share /= share.sum()
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if params.top_k:
        order = order[: params.top_k]

    def cut(order: list[int], limit: float) -> list[int]:
        total, kept, reached = sum(share[i] for i in order), [], 0.0
        for i in order:
            if kept and reached >= limit * total:
                break
            kept.append(i)
            reached += share[i]
        return kept

    order = cut(order, params.top_p)
    order = [i for i in order if share[i] >= params.min_p * share[order[0]]]
    if params.typical_p < 1.0:
        total = sum(share[i] for i in order)
        surprise = {i: -np.log(share[i] / total) for i in order}
        entropy = sum(share[i] / total * surprise[i] for i in order)
        order = cut(sorted(order, key=lambda i: abs(surprise[i] - entropy)), params.typical_p)
    total = sum(share[i] for i in order)
    return {i: share[i] / total for i in order}


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.9},
    {"top_p": 1e-9},
    {"temperature": 3.0, "top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"typical_p": 0.8},
    {"top_k": 64, "top_p": 0.95},
    {"top_k": 200, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.7, "temperature": 0.8},
    {"top_p": 0.9, "min_p": 0.01, "temperature": 1.5},
]


@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_draws_follow_the_definition(options: dict[str, Any]) -> None:
    """Which token a draw falls on is decided by the kept tokens in order of id."""
    logits = random_logits(1)
    params = SamplingParams(**options)
    kept = slow_kept(logits, params)
    ids = sorted(kept)
    edges = np.cumsum([kept[i] for i in ids])
    sampler = TokenSampler(params, seed=9, choice=0, prompt=[1])
    key = np.array([9, 0], dtype=np.uint64)
    for position in range(200):
        token_id = sampler.sample(logits, position).token_id
        place = ids.index(token_id)
        u = uniform(key, position)
        # Shares are rounded to float32 where nothing is filtered: 2^-24 of the sum each.
        slack = len(ids) * 2.0**-24
        assert (edges[place - 1] if place else 0.0) - slack <= u <= edges[place] + slack


def test_draws_have_the_right_frequencies() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    sampler = TokenSampler(SamplingParams(), seed=1, choice=0, prompt=[0])
    count = 20000
    counts = Counter(sampler.sample(logits, i).token_id for i in range(count))
    for token_id, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        sigma = (count * share * (1 - share)) ** 0.5
        assert abs(counts[token_id] - count * share) < 5 * sigma


def test_a_draw_depends_on_seed_choice_and_position_only() -> None:
    logits = random_logits(2)

    def draw(seed: int, choice: int, positions: list[int]) -> list[int]:
        sampler = TokenSampler(SamplingParams(), seed, choice, prompt=[1])
        return [sampler.sample(logits, p).token_id for p in positions]

    forward = draw(5, 0, list(range(50)))
    assert draw(5, 0, list(reversed(range(50)))) == forward[::-1]
    assert draw(5, 1, list(range(50))) != forward
    assert draw(6, 0, list(range(50))) != forward


def test_bias_and_penalties() -> None:
    logits = np.array([2.0, -1.0, 0.5, 0.0, 1.9], dtype=np.float32)
    before = logits.copy()

    def first(params: SamplingParams, prompt: list[int], answers: int = 1) -> list[int]:
        sampler = TokenSampler(params, 0, 0, prompt)
        return [sampler.sample(logits, i).token_id for i in range(answers)]

    greedy = {"temperature": 0.0}
    assert first(SamplingParams(**greedy, logit_bias={1: 3.5}), [0]) == [1]
    assert first(SamplingParams(**greedy, logit_bias={0: -100.0}), [0]) == [4]
    # Repetition counts the prompt: 2.0 / 1.5 is below 1.9.
    assert first(SamplingParams(**greedy, repetition_penalty=1.5), [0]) == [4]
    assert first(SamplingParams(**greedy, repetition_penalty=1.5), [3]) == [0]
    # Presence and frequency count the answer only.
    assert first(SamplingParams(**greedy, presence_penalty=0.2), [0], 4) == [0, 4, 0, 0]
    assert first(SamplingParams(**greedy, frequency_penalty=0.2), [0], 5) == [0, 4, 0, 4, 0]
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_told_of(temperature: float) -> None:
    sampler = TokenSampler(SamplingParams(temperature=temperature), 0, 0, [1])
    logits = random_logits(0)
    logits[17] = np.nan
    with pytest.raises(BackendError, match="nan"):
        sampler.sample(logits, 0)


class OnlyOdd:
    """A grammar that allows odd tokens, up to 9 of them."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def apply(self, logits: NDArray[np.float32]) -> None:
        logits[:: 1 if len(self.accepted) == 9 else 2] = -np.inf

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_decides_what_may_come(temperature: float) -> None:
    mask = OnlyOdd()
    sampler = TokenSampler(SamplingParams(temperature=temperature), 0, 0, [1], mask)
    drawn = [sampler.sample(random_logits(i), i).token_id for i in range(9)]
    assert mask.accepted == drawn
    assert all(token_id % 2 for token_id in drawn)
    with pytest.raises(RequestError, match="no token is allowed"):
        sampler.sample(random_logits(9), 9)


def test_logprobs_are_of_the_logits_as_they_came() -> None:
    logits = random_logits(4)
    exact = logits.astype(np.float64) - logits.max()
    exact -= np.log(np.exp(exact).sum())
    params = SamplingParams(temperature=0.5, top_k=3, logit_bias={7: 100.0}, logprobs=4)
    token = TokenSampler(params, 0, 0, [1]).sample(logits, 5)
    assert token.token_id == 7
    # exp and its argument are rounded to float32: 2^-23 relative, on a sum of positive terms.
    assert token.logprob == pytest.approx(exact[7], abs=2.0**-22 * float(np.ptp(logits)))
    order = np.argsort(-exact, kind="stable")[:4]
    assert [i for i, _ in token.top] == order.tolist()
    assert describe(logits, 7, 4) == token
    assert log_softmax(logits)[7] == token.logprob


@pytest.mark.parametrize("count", [0, 1, 5, 64, 700, 2999, 3000, 9999])
@pytest.mark.parametrize("levels", [3, 10**9])
def test_largest_is_a_stable_sort(count: int, levels: int) -> None:
    values = np.random.default_rng(count).integers(0, levels, VOCAB).astype(np.float32)
    expected = np.argsort(-values, kind="stable")[:count]
    np.testing.assert_array_equal(largest(values, count), expected)
