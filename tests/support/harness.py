"""Loading a model file into a runner, and running prompts cut in any way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from culet.engine.config import EngineConfig
from culet.engine.kv_cache import KvCache
from culet.engine.runner import Piece, Runner
from culet.errors import BackendError
from culet.formats.opening import open_checkpoint
from culet.llm.loading import load_model
from culet.models.base import Model
from culet.models.config import ModelConfig
from culet.models.registry import read_config
from culet.ops.interface import KvType, Ops
from culet.ops.select import BackendName, load_ops

Float32Array = NDArray[np.float32]
CONTEXT = 128
BACKENDS: tuple[BackendName, ...] = ("reference", "cpu")


def exact_ops(backend: BackendName) -> Ops:
    """A backend in exact precision; the test is skipped where it is not built."""
    try:
        return load_ops(backend, precision="exact", threads=2)
    except BackendError as error:
        pytest.skip(str(error))


class Loaded:
    """A model on a backend, with a fresh cache for every prompt."""

    def __init__(self, path: Path, ops: Ops) -> None:
        self.ops = ops
        self.checkpoint = open_checkpoint(path)
        self.config: ModelConfig = read_config(self.checkpoint)
        self.model: Model = load_model(self.config, self.checkpoint, ops, "host").model

    def engine(self, longest_piece: int = CONTEXT, kv_type: KvType = "f32") -> EngineConfig:
        return EngineConfig(
            context_length=CONTEXT,
            max_seqs=3,
            prefill_tokens=longest_piece,
            page_tokens=16,
            kv_type=kv_type,
        )

    def start(self, longest_piece: int = CONTEXT, kv_type: KvType = "f32") -> Runner:
        cache = KvCache(self.ops, self.config, self.engine(longest_piece, kv_type))
        return Runner(self.model, self.ops, cache)

    def logits(
        self,
        ids: NDArray[np.int32],
        pieces: Sequence[int] | None = None,
        wants: Literal["last", "all"] = "all",
        kv_type: KvType = "f32",
        embedding_rows: NDArray[np.int32] | None = None,
        embeddings: Float32Array | None = None,
    ) -> Float32Array:
        """Logits of a prompt run in pieces of these lengths (default: in one).

        Args:
            embedding_rows, embeddings: rows whose embedding is given; with a prompt in one piece.
        """
        lengths = list(pieces or [len(ids)])
        assert sum(lengths) == len(ids)
        runner = self.start(max(lengths), kv_type)
        sequence = Growing(runner)
        found = []
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            count = length if wants == "all" else int(end == len(ids))
            piece = sequence.next(ids[end - length : end], count)
            if embeddings is not None:
                piece = replace(piece, embedding_rows=embedding_rows, embeddings=embeddings)
            found.append(runner.step([piece])[0].logits)
        return np.concatenate(found)


class Growing:
    """A sequence whose tokens come piece by piece."""

    def __init__(self, runner: Runner) -> None:
        self._pages = runner.cache.pages
        self._runs = self._pages.new_runs()
        self._num_tokens = 0

    def next(self, ids: NDArray[np.int32], num_logits: int) -> Piece:
        """The next piece, its pages held and those out of sight given back."""
        start = self._num_tokens
        self._num_tokens += len(ids)
        self._pages.trim(self._runs, start)
        self._pages.extend(self._runs, self._num_tokens)
        return Piece(self._runs, start, ids, num_logits, num_logits)


def cut(total: int, length: int) -> list[int]:
    """`total` as pieces of `length`, the last one shorter if need be."""
    whole, rest = divmod(total, length)
    return [length] * whole + [rest] * (rest > 0)


def prompt(config: ModelConfig, length: int, seed: int = 1) -> NDArray[np.int32]:
    """Random token ids."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, config.vocab_size, length).astype(np.int32)
