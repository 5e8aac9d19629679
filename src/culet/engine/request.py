"""What a caller asks of one generation, and how it can end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from culet.errors import RequestError

FinishReason = Literal["stop", "length"]
"""`stop`: a stop token or stop text came; `length`: max_tokens or the context is used up."""

_MAX_SEED = 2**64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; see `engine.sampler` for the order of the filters.

    Attributes:
        max_tokens: tokens to generate at most; None for as many as the context holds.
        temperature: divisor of the logits; 0 takes the most probable token.
        top_k: how many of the most probable tokens stay; 0 for all.
        top_p: the most probable tokens stay until their probabilities sum to this.
        min_p: tokens stay that are at least this share as probable as the most probable one.
        seed: of this request's draws; None for one that nobody knows.
        stop: texts that end the answer; they are not part of it.
        ignore_eos: go on where the model would end.
        logprobs: how many alternatives to report with each token; None for no logprobs at all.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _require_integer("max_tokens", self.max_tokens, 0)
        _require_integer("top_k", self.top_k, 0)
        if self.logprobs is not None:
            _require_integer("logprobs", self.logprobs, 0)
        if self.seed is not None:
            _require_integer("seed", self.seed, 0)
            if self.seed >= _MAX_SEED:
                raise RequestError("seed", f"{self.seed} is too large; it must be below 2^64")
        _require_number("temperature", self.temperature, 0.0, math.inf)
        _require_number("top_p", self.top_p, 0.0, 1.0)
        _require_number("min_p", self.min_p, 0.0, 1.0)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError("stop", f"{text!r} can't end an answer; texts of at least 1 can")


def _require_integer(field: str, value: object, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(field, f"{value!r} is no whole number")
    if value < minimum:
        raise RequestError(field, f"{value} is too small; at least {minimum} is allowed")


def _require_number(field: str, value: object, minimum: float, maximum: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(field, f"{value!r} is no number")
    if not (minimum <= value <= maximum) or math.isinf(value):
        allowed = f"{minimum:g} and up" if math.isinf(maximum) else f"{minimum:g} to {maximum:g}"
        raise RequestError(field, f"{value!r} is out of range; {allowed} is allowed")
