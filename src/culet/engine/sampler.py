"""Choosing a token from logits.

In this order: logit bias, repetition penalty, presence and frequency penalties, grammar mask; then,
as transformers' `generate` orders them, temperature, top-k, top-p, min-p, typical; then the draw.
A draw is a function of (seed, choice, position) alone, so the same seed gives the same text alone,
in a batch, after a preemption and with a cache hit. Log-probabilities are the model's own: softmax
of the logits as they came. Knows nothing of text or scheduling.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from culet.engine.request import SamplingParams
from culet.errors import BackendError, RequestError

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
IndexArray = NDArray[np.intp]

# Blocks that `largest` takes the maximum of first; a power of two near the root of the vocabulary.
_BLOCK = 512
# How many of the most probable tokens top-p looks at first; it seldom needs more.
_FIRST_LOOK = 1024


class TokenMask(Protocol):
    """A grammar, as far as sampling knows it; one object per choice."""

    def apply(self, logits: Float32Array) -> None:
        """Set the logits [vocab] of tokens that must not come next to -inf, in place."""
        ...

    def accept(self, token_id: int) -> None:
        """The token that was chosen."""
        ...


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token and, if asked for, how probable it was.

    Attributes:
        logprob: its log-probability under the model; None unless asked for, and for the first
            token of a prompt, which nothing predicts.
        top: the most probable tokens and their log-probabilities, descending.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class TokenSampler:
    """Chooses the tokens of one choice of one request."""

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        choice: int,
        prompt: Sequence[int],
        mask: TokenMask | None = None,
    ) -> None:
        self._params = params
        self._key = np.array([seed, choice], dtype=np.uint64)
        self._mask = mask
        self._answer: Counter[int] = Counter()
        self._seen = set(prompt) if params.repetition_penalty != 1.0 else set()
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.intp, len(params.logit_bias))
        self._biases = np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias))
        self._has_penalty = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0

    def sample(self, logits: Float32Array, position: int) -> Sampled:
        """Choose the token at `position` of the sequence from logits [vocab], left unchanged.

        Raises:
            RequestError: the mask allows no token at all.
            BackendError: the logits are no numbers.
        """
        adjusted = self._adjust(logits)
        best = int(np.argmax(adjusted))  # of NaNs, the first
        peak = float(adjusted[best])
        if peak == -math.inf and self._mask is not None:
            raise RequestError("grammar", "no token is allowed after the text so far")
        if not math.isfinite(peak):
            raise BackendError(f"the model's largest logit is {peak}; a finite number is needed")
        token_id = best
        if self._params.temperature > 0.0:
            token_id = _draw(adjusted, peak, self._params, uniform(self._key, position))
        self._accept(token_id)
        if self._params.logprobs is None:
            return Sampled(token_id)
        return describe(logits, token_id, self._params.logprobs)

    def _accept(self, token_id: int) -> None:
        if self._has_penalty:
            self._answer[token_id] += 1
        if self._params.repetition_penalty != 1.0:
            self._seen.add(token_id)
        if self._mask is not None:
            self._mask.accept(token_id)

    def _adjust(self, logits: Float32Array) -> Float32Array:
        """Logits after bias, penalties and mask; the same array if there are none."""
        params = self._params
        if not (len(self._bias_ids) or self._seen or self._answer or self._mask):
            return logits
        logits = logits.copy()
        logits[self._bias_ids] += self._biases
        if self._seen:
            ids = np.fromiter(self._seen, np.intp, len(self._seen))
            values = logits[ids]
            penalty = np.float32(params.repetition_penalty)
            logits[ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._answer:
            ids = np.fromiter(self._answer.keys(), np.intp, len(self._answer))
            counts = np.fromiter(self._answer.values(), np.float32, len(self._answer))
            logits[ids] -= np.float32(params.presence_penalty)
            logits[ids] -= np.float32(params.frequency_penalty) * counts
        if self._mask is not None:
            self._mask.apply(logits)
        return logits


def describe(logits: Float32Array, token_id: int, num_top: int) -> Sampled:
    """A token with its log-probability, and the `num_top` most probable; from logits [vocab]."""
    total = log_sum_exp(logits)
    top = largest(logits, num_top)
    return Sampled(
        token_id,
        logprob=float(logits[token_id]) - total,
        top=tuple((int(i), float(logits[i]) - total) for i in top),
    )


def log_softmax(logits: Float32Array) -> Float64Array:
    """Log-probabilities [vocab] in float64."""
    return logits.astype(np.float64) - log_sum_exp(logits)


def new_seed() -> int:
    """A seed that nobody knows."""
    return secrets.randbits(63)


def log_sum_exp(logits: Float32Array) -> float:
    """log(sum(exp(logits))): exponentials in float32, their sum in float64."""
    peak = logits.max()
    return float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))


def largest(values: Float32Array, count: int) -> IndexArray:
    """Indices of the `count` largest values, descending; of equal ones the lower index first."""
    count = min(count, len(values))
    if count == 0:
        return np.empty(0, dtype=np.intp)
    # Each of the `count` blocks with the largest maxima has a value that reaches the least of
    # those maxima, so the values wanted do so too; few others do.
    num_blocks = len(values) // _BLOCK
    threshold = np.float32(-np.inf)
    if num_blocks >= count:
        maxima = values[: num_blocks * _BLOCK].reshape(num_blocks, _BLOCK).max(axis=1)
        threshold = np.partition(maxima, num_blocks - count)[num_blocks - count]
    elif count < len(values):
        threshold = np.partition(values, len(values) - count)[len(values) - count]
    candidates = np.flatnonzero(values >= threshold)
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:count]]


def uniform(key: NDArray[np.uint64], position: int) -> float:
    """The number in [0, 1) of a key [2] and a position: Philox, so any can be had alone."""
    bits = int(np.random.Philox(key=key, counter=position).random_raw())
    return (bits >> 11) * 2.0**-53


def _draw(logits: Float32Array, peak: float, params: SamplingParams, u: float) -> int:
    """The token that `u` in [0, 1) falls on, kept tokens laid side by side in order of id."""
    if not params.top_k and params.top_p == 1.0 and not params.min_p and params.typical_p == 1.0:
        shares = np.exp((logits - np.float32(peak)) / np.float32(params.temperature))
        # Block sums first: a running sum over the whole vocabulary takes ten times as long.
        sums = np.add.reduceat(shares, np.arange(0, len(shares), _BLOCK), dtype=np.float64)
        block, left = _place(sums, u * float(sums.sum()))
        begin = block * _BLOCK
        return begin + _place(shares[begin : begin + _BLOCK].astype(np.float64), left)[0]
    ids, weight = _kept(logits, peak, params)
    order = np.argsort(ids)
    return int(ids[order[_place(weight[order], u * float(weight.sum()))[0]]])


def _place(weight: Float64Array, target: float) -> tuple[int, float]:
    """The weight at which the running sum passes `target`, and how far into it `target` lies."""
    cumulative = np.cumsum(weight)
    place = int(np.searchsorted(cumulative, target, side="right"))
    if place == len(weight):  # sums are rounded; never a token of no weight, which is forbidden
        place = int(np.flatnonzero(weight)[-1])
    return place, target - float(cumulative[place] - weight[place])


def _kept(
    logits: Float32Array, peak: float, params: SamplingParams
) -> tuple[IndexArray, Float64Array]:
    """Tokens that the filters leave, and their weights."""
    if params.top_k:
        ids = largest(logits, params.top_k)
    elif params.top_p < 1.0 and params.typical_p == 1.0:
        return _nucleus(logits, peak, params)
    elif params.top_p == 1.0 and params.min_p > 0.0:
        # All that min-p can keep, with a margin for rounding; it is applied exactly below.
        floor = peak + params.temperature * math.log(params.min_p) - 1e-3 * abs(peak)
        candidates = np.flatnonzero(logits >= floor)
        ids = candidates[largest(logits[candidates], len(candidates))]
    else:
        ids = largest(logits, len(logits))
    weight = _weights(logits[ids], peak, params.temperature)
    weight = weight[: _top_p(weight, float(weight.sum()), params.top_p)]
    weight = weight[weight >= params.min_p * weight[0]]
    ids = ids[: len(weight)]
    if params.typical_p < 1.0:
        chosen = _typical(weight, params.typical_p)
        ids, weight = ids[chosen], weight[chosen]
    return ids, weight


def _nucleus(
    logits: Float32Array, peak: float, params: SamplingParams
) -> tuple[IndexArray, Float64Array]:
    """Top-p and min-p over the whole vocabulary, without sorting more of it than they need."""
    scaled = np.exp((logits - np.float32(peak)) / np.float32(params.temperature))
    total = float(scaled.sum(dtype=np.float64))
    count = min(_FIRST_LOOK, len(logits))
    while True:
        ids = largest(logits, count)
        weight = scaled[ids].astype(np.float64)
        kept = _top_p(weight, total, params.top_p)
        if kept < count or count == len(logits):
            weight = weight[:kept]
            weight = weight[weight >= params.min_p * weight[0]]
            return ids[: len(weight)], weight
        count = min(count * 8, len(logits))


def _weights(logits: Float32Array, peak: float, temperature: float) -> Float64Array:
    weights: Float64Array = np.exp((logits.astype(np.float64) - peak) / temperature)
    return weights


def _top_p(weight: Float64Array, total: float, top_p: float) -> int:
    """How many of the descending weights stay: those before which less than top_p was reached."""
    before = np.cumsum(weight) - weight
    return max(1, int(np.searchsorted(before, top_p * total, side="left")))


def _typical(weight: Float64Array, typical_p: float) -> IndexArray:
    """Indices of the weights whose surprise is closest to the entropy, up to a share typical_p."""
    share = weight / weight.sum()
    surprise = -np.log(np.maximum(share, np.finfo(np.float64).tiny))
    distance = np.abs(surprise - (share * surprise).sum())
    order = np.argsort(distance, kind="stable")
    before = np.cumsum(share[order]) - share[order]
    return order[: max(1, int(np.searchsorted(before, typical_p, side="left")))]
