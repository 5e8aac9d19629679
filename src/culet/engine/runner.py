"""Running steps: pieces of sequences become a `Step`, the model runs, results come back.

Pages are allocated before, by whoever plans the step. Knows nothing of requests, sampling or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from culet.engine.kv_cache import KvCache
from culet.engine.pages import Runs
from culet.errors import RequestError
from culet.models.base import Model, Step
from culet.models.config import ModelConfig
from culet.ops.interface import Int32Array, Ops

Float32Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Consecutive rows of one sequence in a step.

    Attributes:
        runs: pages of the sequence; they hold these rows' positions already.
        start: position of the first row.
        token_ids: [n], n at least 1.
        num_kept: rows, counted from the end, that go through all layers.
        num_logits: rows, counted from the end, whose logits are computed; at most `num_kept`.
        embedding_rows: places in `token_ids` whose embedding is given (media).
        embeddings: float32 [len(embedding_rows), hidden] or None.
    """

    runs: Runs
    start: int
    token_ids: Int32Array
    num_kept: int
    num_logits: int
    embedding_rows: Int32Array | None = None
    embeddings: Float32Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PieceResult:
    """What came of one piece.

    Attributes:
        hidden: [num_kept, hidden], after the output norm.
        logits: [num_logits, vocab], after soft-capping.
    """

    hidden: Float32Array
    logits: Float32Array


def num_token_ids(config: ModelConfig) -> int:
    """How many token ids have all the embeddings that the model needs."""
    if config.ple_dim:
        return min(config.vocab_size, config.ple_vocab_size)
    return config.vocab_size


def as_token_ids(values: Sequence[int] | NDArray[np.integer], config: ModelConfig) -> Int32Array:
    """Token ids as the engine takes them.

    Raises:
        RequestError: an id that the model has no embedding for.
    """
    limit = num_token_ids(config)
    try:
        ids = np.asarray(values, dtype=np.int64).reshape(-1)
    except OverflowError:  # beyond 64 bits
        wrong = [i for i in values if not 0 <= i < limit]
    else:
        wrong = list(ids[(ids < 0) | (ids >= limit)])
    if wrong:
        raise RequestError("token_ids", f"{int(wrong[0])} is no token; 0 to {limit - 1} are")
    return ids.astype(np.int32)


class Runner:
    """A model with its cache."""

    def __init__(self, model: Model, ops: Ops, cache: KvCache) -> None:
        self.model = model
        self.ops = ops
        self.cache = cache

    def step(self, pieces: Sequence[Piece]) -> list[PieceResult]:
        """Run one step over pieces of distinct sequences; their K and V are stored afterwards."""
        output = self.model.forward(self._build(pieces), self.cache.layers)
        self.ops.sync()
        config = self.model.config
        logits = np.empty((0, config.vocab_size), dtype=np.float32)
        if output.logits is not None:
            logits = self.ops.numpy(output.logits)
        kept_ends = np.cumsum([piece.num_kept for piece in pieces])[:-1]
        logit_ends = np.cumsum([piece.num_logits for piece in pieces])[:-1]
        return [
            PieceResult(h, z)
            for h, z in zip(
                np.split(self.ops.numpy(output.hidden), kept_ends),
                np.split(logits, logit_ends),
                strict=True,
            )
        ]

    def _build(self, pieces: Sequence[Piece]) -> Step:
        lengths = [len(piece.token_ids) for piece in pieces]
        ends = np.cumsum(lengths)
        positions = _ranges([(p.start, p.start + n) for p, n in zip(pieces, lengths, strict=True)])
        row_seq = np.repeat(np.arange(len(pieces), dtype=np.int32), lengths)
        kept = _ranges([(e - p.num_kept, e) for p, e in zip(pieces, ends, strict=True)])
        kept_ends = np.cumsum([piece.num_kept for piece in pieces])
        wants = _ranges([(e - p.num_logits, e) for p, e in zip(pieces, kept_ends, strict=True)])
        runs = [piece.runs for piece in pieces]
        kinds = self.model.config.kinds
        table = self.cache.page_table
        given = [
            (end - len(piece.token_ids) + piece.embedding_rows, piece.embeddings)
            for piece, end in zip(pieces, ends, strict=True)
            if piece.embedding_rows is not None and piece.embeddings is not None
        ]
        rows = np.concatenate([r for r, _ in given]).astype(np.int32) if given else None
        pages = {kind: table(kind, runs, row_seq, positions) for kind in kinds}
        kept_pages = pages
        if len(kept) < len(positions):
            kept_pages = {
                kind: replace(pages[kind], row_seq=row_seq[kept], positions=positions[kept])
                for kind in kinds
            }
        return Step(
            token_ids=np.concatenate([piece.token_ids for piece in pieces]),
            positions=positions,
            pages=pages,
            kept_rows=kept,
            kept_pages=kept_pages,
            wants_logits=wants,
            embedding_rows=rows,
            embeddings=np.concatenate([e for _, e in given]) if given else None,
        )


def _ranges(bounds: Sequence[tuple[int, int]]) -> Int32Array:
    """The numbers of all half-open ranges, one after the other."""
    return np.concatenate([np.arange(begin, end, dtype=np.int32) for begin, end in bounds])
