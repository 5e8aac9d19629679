"""Choosing a token from logits. Pure numpy in float64; draws depend on seed and index alone.

Filters apply in the order of transformers' `generate`: temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from culet.engine.request import SamplingParams

Float64Array = NDArray[np.float64]
IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token.

    Attributes:
        logprob: its log-probability under the model: softmax of the logits as they are, before
            temperature and filters. None unless asked for.
        top: the most probable tokens and their log-probabilities, descending.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(logits: NDArray[np.float32], params: SamplingParams, seed: int, index: int) -> Sampled:
    """Choose a token from logits [vocab].

    Args:
        seed: of the request.
        index: how many tokens the request has had before; the draw is a function of both.
    """
    token_id = _choose(logits, params, seed, index)
    if params.logprobs is None:
        return Sampled(token_id)
    logprobs = log_softmax(logits)
    top = largest(logprobs, params.logprobs)
    return Sampled(
        token_id,
        logprob=float(logprobs[token_id]),
        top=tuple((int(i), float(logprobs[i])) for i in top),
    )


def log_softmax(logits: NDArray[np.float32]) -> Float64Array:
    """Log-probabilities [vocab] in float64."""
    z = logits.astype(np.float64)
    z -= z.max()
    result: Float64Array = z - np.log(np.exp(z).sum())
    return result


def largest(values: Float64Array, count: int) -> IndexArray:
    """Indices of the `count` largest values, descending; of equal ones the lower index first."""
    count = min(count, len(values))
    if count == 0:
        return np.empty(0, dtype=np.intp)
    if count < len(values):
        # All that reach the count-th largest value, so that ties are decided by index below.
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        candidates = np.flatnonzero(values >= threshold)
    else:
        candidates = np.arange(len(values))
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:count]]


def _choose(logits: NDArray[np.float32], params: SamplingParams, seed: int, index: int) -> int:
    if params.temperature == 0.0:
        return int(np.argmax(logits))
    z = logits.astype(np.float64) / params.temperature
    kept = largest(z, params.top_k or len(z))
    weight = np.exp(z[kept] - z[kept[0]])
    if params.top_p < 1.0:
        # Token i stays if those before it sum to less than top_p; the first always does.
        before = np.cumsum(weight) - weight
        weight = weight[before < max(params.top_p, np.finfo(np.float64).tiny) * weight.sum()]
    weight = weight[weight >= params.min_p * weight[0]]
    cumulative = np.cumsum(weight)
    place = np.searchsorted(cumulative, uniform(seed, index) * cumulative[-1], side="right")
    # The product can round up to the sum itself.
    return int(kept[min(int(place), len(weight) - 1)])


def new_seed() -> int:
    """A seed that nobody knows."""
    return secrets.randbits(63)


def uniform(seed: int, index: int) -> float:
    """The `index`-th number in [0, 1) of a seed's sequence; Philox, so any can be had alone."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=index)).random())
