"""One sequence at a time: prefill in chunks, then token by token until something ends it.

The plain loop that a single caller needs; serving many at once is the scheduler's business. Knows
token ids only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from culet.engine.config import EngineConfig
from culet.engine.kv_cache import GroupPlan, KvCache, plan_groups
from culet.engine.request import FinishReason, SamplingParams
from culet.engine.runner import Piece, Runner
from culet.engine.sampler import Sampled, sample
from culet.errors import CapacityError
from culet.models.base import Model
from culet.ops.interface import Int32Array, Ops


@dataclass(frozen=True, slots=True)
class Generated:
    """One token of an answer.

    Attributes:
        finish_reason: why it is the last one; None if more follow. With `stop`, the token is the
            one that ended the answer and is no part of it.
    """

    sampled: Sampled
    finish_reason: FinishReason | None


class SingleEngine:
    """A model, its cache, and one sequence after another."""

    def __init__(self, model: Model, ops: Ops, config: EngineConfig) -> None:
        self.config = config
        self.plans = plan_groups(model.config, config)
        self.cache = KvCache(ops, model.config, config)
        self.runner = Runner(model, ops, self.cache)

    def generate(
        self,
        prompt: Int32Array,
        params: SamplingParams,
        seed: int,
        *,
        stop_ids: Collection[int],
        num_ids: int,
    ) -> Iterator[Generated]:
        """Tokens of the answer as they come; closing the iterator frees the pages.

        Args:
            seed: of the draws; `params.seed` is not looked at.
            stop_ids: tokens that end the answer.
            num_ids: ids from here on are never drawn.

        Raises:
            CapacityError: the prompt leaves no room for a token in the context.
        """
        room = self.config.context_length - len(prompt)
        if room < 1:
            raise CapacityError(
                f"the prompt has {len(prompt)} tokens; the context of "
                f"{self.config.context_length} must hold it and at least one more"
            )
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        stops = frozenset() if params.ignore_eos else frozenset(stop_ids)
        return self._tokens(prompt, params, seed, limit, stops, num_ids)

    def _tokens(
        self,
        prompt: Int32Array,
        params: SamplingParams,
        seed: int,
        limit: int,
        stops: frozenset[int],
        num_ids: int,
    ) -> Iterator[Generated]:
        if not limit:
            return
        sequence = _Sequence(self)
        try:
            logits = sequence.run(prompt, "last")[0]
            for index in range(limit):
                sampled = sample(logits[:num_ids], params, seed, index)
                stopped = sampled.token_id in stops
                last = index + 1 == limit
                reason: FinishReason | None = "stop" if stopped else "length" if last else None
                yield Generated(sampled, reason)
                if reason is not None:
                    return
                logits = sequence.run(np.array([sampled.token_id], dtype=np.int32), "last")[0]
        finally:
            sequence.free()

    def kv_bytes(self, plan: GroupPlan) -> int:
        """Bytes that the storage of one group's layers has."""
        return sum(self.cache.layers[spec.index].num_bytes for spec in plan.layers)

    def logits(self, token_ids: Int32Array) -> NDArray[np.float32]:
        """Logits [n, vocab] at every position, after soft-capping.

        Raises:
            CapacityError: more tokens than the context holds.
        """
        if len(token_ids) > self.config.context_length:
            raise CapacityError(
                f"{len(token_ids)} tokens are more than the context of "
                f"{self.config.context_length} holds"
            )
        sequence = _Sequence(self)
        try:
            return sequence.run(token_ids, "all")
        finally:
            sequence.free()


class _Sequence:
    """Pages and length of the sequence that is running."""

    def __init__(self, engine: SingleEngine) -> None:
        self._engine = engine
        self._pages = engine.cache.pages
        self._runs = self._pages.new_runs()
        self._num_tokens = 0

    def run(self, token_ids: Int32Array, wanted: str) -> NDArray[np.float32]:
        """Append tokens in chunks; logits of the `last` one or of `all` of them."""
        found = []
        step = self._engine.config.prefill_tokens
        for begin in range(0, len(token_ids), step):
            part = token_ids[begin : begin + step]
            is_last = begin + step >= len(token_ids)
            count = len(part) if wanted == "all" else int(is_last)
            end = self._num_tokens + len(part)
            self._pages.trim(self._runs, self._num_tokens)
            # The cache was planned for a whole context, so the pages are there.
            self._pages.extend(self._runs, end)
            piece = Piece(self._runs, self._num_tokens, part, count, count)
            found.append(self._engine.runner.step([piece])[0].logits)
            self._num_tokens = end
        return np.concatenate(found)

    def free(self) -> None:
        """Give all pages back."""
        self._pages.release(self._runs)
