"""What a caller asks of one generation, and how it can end."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from culet.errors import RequestError

FinishReason = Literal["stop", "length", "cancelled", "deadline"]
"""`stop`: a stop token or stop text came; `length`: max_tokens or the context is used up;
`cancelled`: the caller cancelled, or the engine was closed; `deadline`: its time was up."""

_MAX_SEED = 2**64
_MAX_CHOICES = 128
_MAX_BIASES = 4096


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen; see `engine.sampler` for the order of the steps.

    Attributes:
        max_tokens: tokens to generate at most; None for as many as the context holds.
        n: choices: independent answers to the same prompt.
        temperature: divisor of the logits; 0 takes the most probable token.
        top_k: how many of the most probable tokens stay; 0 for all.
        top_p: the most probable tokens stay until their probabilities sum to this.
        min_p: tokens stay that are at least this share as probable as the most probable one.
        typical_p: the tokens whose surprise is closest to the expected one stay until their
            probabilities sum to this.
        repetition_penalty: logits of tokens of the prompt and the answer are divided by this where
            positive, multiplied where negative.
        presence_penalty: subtracted from the logit of every token that the answer has.
        frequency_penalty: subtracted as many times as the answer has the token.
        logit_bias: added to the logits of these token ids.
        seed: of this request's draws; None for one that nobody knows.
        stop: texts that end the answer; they are not part of it.
        stop_token_ids: tokens that end the answer besides the model's own.
        ignore_eos: go on where the model would end.
        logprobs: how many alternatives to report with each token; None for no logprobs at all.
        prompt_logprobs: the same for the tokens of the prompt.
    """

    max_tokens: int | None = None
    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "logprobs", "prompt_logprobs", "seed"):
            value = getattr(self, name)
            if value is not None:
                _require_integer(name, value, 0)
        if self.seed is not None and self.seed >= _MAX_SEED:
            raise RequestError("seed", f"{self.seed} is too large; it must be below 2^64")
        _require_integer("n", self.n, 1, _MAX_CHOICES)
        _require_integer("top_k", self.top_k, 0)
        _require_number("temperature", self.temperature, 0.0, math.inf)
        for name in ("top_p", "min_p", "typical_p"):
            _require_number(name, getattr(self, name), 0.0, 1.0)
        _require_number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        for name in ("presence_penalty", "frequency_penalty"):
            _require_number(name, getattr(self, name), -2.0, 2.0)
        if len(self.logit_bias) > _MAX_BIASES:
            raise RequestError(
                "logit_bias", f"{len(self.logit_bias)} tokens are too many; {_MAX_BIASES} can be"
            )
        for token_id, bias in self.logit_bias.items():
            _require_integer("logit_bias", token_id, 0)
            _require_number("logit_bias", bias, -100.0, 100.0)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError("stop", f"{text!r} can't end an answer; texts of at least 1 can")
        for token_id in self.stop_token_ids:
            _require_integer("stop_token_ids", token_id, 0)


@dataclass(frozen=True, slots=True, eq=False)
class MediaSpan:
    """Rows of a prompt whose embeddings are given: an image, a piece of sound.

    Attributes:
        start: position of the first row in the prompt.
        embeddings: float32 [n, hidden].
        digest: of what the embeddings were made from; equal content has equal digests.
    """

    start: int
    embeddings: NDArray[np.float32]
    digest: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.embeddings)


@dataclass(frozen=True, slots=True, eq=False)
class EnginePrompt:
    """Token ids, some of them stand-ins (pad) for media.

    Attributes:
        media: in order of position, not overlapping.
    """

    token_ids: Sequence[int]
    media: tuple[MediaSpan, ...] = ()

    def cache_keys(self) -> list[int]:
        """What the prefix cache compares: token ids, and for media rows a number from the digest.

        The numbers are below 0, so that they are never a token's.
        """
        keys = list(self.token_ids)
        for span in self.media:
            for row in range(span.start, span.end):
                name = span.digest + (row - span.start).to_bytes(4, "little")
                hashed = hashlib.blake2b(name, digest_size=16).digest()
                keys[row] = -1 - int.from_bytes(hashed, "little")
        return keys


def given_rows(
    media: Sequence[MediaSpan], start: int, end: int
) -> tuple[NDArray[np.int32] | None, NDArray[np.float32] | None]:
    """Which of the positions from `start` to `end` have given embeddings, counted from `start`.

    Returns:
        Rows [e] and their embeddings [e, hidden]; None, None if there are none.
    """
    rows: list[int] = []
    parts: list[NDArray[np.float32]] = []
    for span in media:
        low, high = max(span.start, start), min(span.end, end)
        if low < high:
            rows.extend(range(low - start, high - start))
            parts.append(span.embeddings[low - span.start : high - span.start])
    if not rows:
        return None, None
    return np.array(rows, dtype=np.int32), np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request cost.

    Attributes:
        prompt_tokens: of the prompt, counted once whatever `n` is.
        completion_tokens: sampled, over all choices; a stop token counts.
        cached_tokens: of the prompt, those that the first choice took from the prefix cache.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = field(default=0, compare=False)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def _require_integer(field: str, value: object, minimum: int, maximum: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(field, f"{value!r} is no whole number")
    if not minimum <= value <= maximum:
        allowed = f"{minimum} and up" if math.isinf(maximum) else f"{minimum} to {maximum:g}"
        raise RequestError(field, f"{value} is out of range; {allowed} is allowed")


def _require_number(field: str, value: object, minimum: float, maximum: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(field, f"{value!r} is no number")
    if not (minimum <= value <= maximum) or math.isinf(value):
        allowed = f"{minimum:g} and up" if math.isinf(maximum) else f"{minimum:g} to {maximum:g}"
        raise RequestError(field, f"{value!r} is out of range; {allowed} is allowed")
