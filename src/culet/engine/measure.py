"""Measuring a loaded model: prefill, decode at a depth, batches, every row's logits.

Drives the runner directly, so that no queue and no prefix cache stands between. Ids are random and
fresh for every repeat.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from culet.engine.config import EngineConfig
from culet.engine.kv_cache import KvCache
from culet.engine.pages import Runs
from culet.engine.runner import Piece, Runner, num_token_ids
from culet.models.base import Model
from culet.ops.interface import Int32Array, Ops


@dataclass(slots=True, eq=False)
class _Sequence:
    runs: Runs
    num_tokens: int = 0


class Measurement:
    """One model with a cache of its own.

    Args:
        config: `max_seqs` sequences of `context_length` tokens must suffice for all measurements.
    """

    def __init__(self, model: Model, ops: Ops, config: EngineConfig, seed: int = 0) -> None:
        self.config = config
        self.cache = KvCache(ops, model.config, config)
        self._runner = Runner(model, ops, self.cache)
        self._rng = np.random.default_rng(seed)
        self._num_ids = num_token_ids(model.config)

    def prefill(self, num_tokens: int) -> float:
        """Seconds from a prompt of `num_tokens` to its first logits."""
        sequences = self._open(1)
        seconds = self._append(sequences, num_tokens, every_row=False)
        self._close(sequences)
        return seconds

    def score(self, num_tokens: int) -> float:
        """Seconds of a prompt whose every row goes through all layers, logits of the second half.

        That is the work of a perplexity: the first half is context only.
        """
        sequences = self._open(1)
        seconds = self._append(sequences, num_tokens, every_row=True)
        self._close(sequences)
        return seconds

    def decode(self, num_steps: int, num_seqs: int, depth: int) -> list[float]:
        """Seconds of each step of `num_seqs` sequences that begin with `depth` tokens.

        A step ends when the most probable token of every sequence is known.
        """
        sequences = self._open(num_seqs)
        self._fill(sequences, max(depth, 1))
        tokens = self._random_ids(num_seqs)
        seconds = []
        for _ in range(num_steps):
            start = time.perf_counter()
            logits = self._step(sequences, [tokens[i : i + 1] for i in range(num_seqs)], 1)
            tokens = np.array([row[0].argmax() for row in logits], dtype=np.int32)
            seconds.append(time.perf_counter() - start)
        self._close(sequences)
        return seconds

    def verify(self, num_tokens: int, num_steps: int, depth: int) -> list[float]:
        """Seconds of each pass over `num_tokens` drafted tokens of a sequence, all with logits."""
        sequences = self._open(1)
        self._fill(sequences, max(depth, 1))
        seconds = []
        for _ in range(num_steps):
            ids = self._random_ids(num_tokens)
            start = time.perf_counter()
            self._step(sequences, [ids], num_tokens)[0].argmax(axis=-1)
            seconds.append(time.perf_counter() - start)
        self._close(sequences)
        return seconds

    def answer(self, num_prompt: int, num_tokens: int) -> float:
        """Seconds of a whole greedy answer of `num_tokens` tokens, prompt included."""
        sequences = self._open(1)
        ids = self._random_ids(num_prompt)
        start = time.perf_counter()
        for _ in range(num_tokens):
            logits = self._step(sequences, [ids], 1)[0]
            ids = np.array([logits[0].argmax()], dtype=np.int32)
        seconds = time.perf_counter() - start
        self._close(sequences)
        return seconds

    def _open(self, num_seqs: int) -> list[_Sequence]:
        return [_Sequence(self.cache.pages.new_runs()) for _ in range(num_seqs)]

    def _close(self, sequences: Sequence[_Sequence]) -> None:
        for sequence in sequences:
            self.cache.pages.release(sequence.runs)

    def _random_ids(self, count: int) -> Int32Array:
        return self._rng.integers(0, self._num_ids, count, dtype=np.int32)

    def _fill(self, sequences: Sequence[_Sequence], num_tokens: int) -> None:
        for sequence in sequences:
            self._append([sequence], num_tokens, every_row=False)

    def _append(self, sequences: Sequence[_Sequence], num_tokens: int, every_row: bool) -> float:
        """Append random tokens to each sequence in prefill steps; seconds."""
        ids = self._random_ids(num_tokens)
        start = time.perf_counter()
        for begin in range(0, num_tokens, self.config.prefill_tokens):
            part = ids[begin : begin + self.config.prefill_tokens]
            end = begin + len(part)
            if every_row:
                num_logits = min(len(part), max(0, end - num_tokens // 2))
                self._step(sequences, [part] * len(sequences), num_logits, len(part))
            else:
                self._step(sequences, [part] * len(sequences), int(end == num_tokens))
        return time.perf_counter() - start

    def _step(
        self,
        sequences: Sequence[_Sequence],
        ids: Sequence[Int32Array],
        num_logits: int,
        num_kept: int | None = None,
    ) -> list[NDArray[np.float32]]:
        """One step that appends `ids[i]` to sequence i; logits of the last `num_logits` rows.

        `num_kept` rows, as many as have logits by default, go through all layers.
        """
        kept = num_logits if num_kept is None else num_kept
        pages = self.cache.pages
        pieces = []
        for sequence, new in zip(sequences, ids, strict=True):
            pages.trim(sequence.runs, sequence.num_tokens)
            pages.extend(sequence.runs, sequence.num_tokens + len(new))
            pieces.append(Piece(sequence.runs, sequence.num_tokens, new, kept, num_logits))
            sequence.num_tokens += len(new)
        return [result.logits for result in self._runner.step(pieces)]
