"""Running steps: pieces of sequences become a `Step`, the model runs, logits come back.

Decides which rows go through all layers. Knows nothing of requests, sampling or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from culet.engine.kv_cache import KvCache, SequenceKv
from culet.errors import CapacityError, RequestError
from culet.models.base import Model, Step
from culet.ops.interface import Int32Array, Ops

Wanted = Literal["none", "last", "all"]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The next tokens of one sequence.

    Attributes:
        token_ids: [n], n at least 1.
        wants_logits: of which of these tokens logits are wanted.
        embedding_rows: places in `token_ids` whose embedding is given (media).
        embeddings: float32 [len(embedding_rows), hidden] or None.
    """

    sequence: SequenceKv
    token_ids: Int32Array
    wants_logits: Wanted
    embedding_rows: Int32Array | None = None
    embeddings: NDArray[np.float32] | None = None


class Runner:
    """A model with its cache."""

    def __init__(self, model: Model, ops: Ops, cache: KvCache, context_length: int) -> None:
        self.model = model
        self.ops = ops
        self.cache = cache
        self.context_length = context_length
        config = model.config
        self._num_ids = config.vocab_size
        if config.ple_dim:
            self._num_ids = min(config.vocab_size, config.ple_vocab_size)

    def step(self, pieces: Sequence[Piece]) -> list[NDArray[np.float32]]:
        """Run one step over pieces of distinct sequences; logits [k, vocab] of each piece.

        A piece's K and V are stored afterwards and its sequence is longer by its tokens.

        Raises:
            RequestError: a token id that the model has no embedding for.
            CapacityError: a sequence would pass the context length, or pages run out; no sequence
                has become longer then.
        """
        for piece in pieces:
            self._check(piece)
        for piece in pieces:
            self.cache.extend(piece.sequence, len(piece.token_ids))
        output = self.model.forward(self._build(pieces), self.cache.layers)
        self.ops.sync()
        for piece in pieces:
            piece.sequence.num_tokens += len(piece.token_ids)
        counts = [_num_logits(piece) for piece in pieces]
        if output.logits is None:
            empty = np.empty((0, self.model.config.vocab_size), dtype=np.float32)
            return [empty] * len(pieces)
        return np.split(self.ops.numpy(output.logits), np.cumsum(counts)[:-1])

    def _check(self, piece: Piece) -> None:
        ids = piece.token_ids
        wrong = ids[(ids < 0) | (ids >= self._num_ids)]
        if len(wrong):
            raise RequestError(
                "token_ids", f"{int(wrong[0])} is no token; 0 to {self._num_ids - 1} are"
            )
        length = piece.sequence.num_tokens + len(ids)
        if length > self.context_length:
            raise CapacityError(
                f"the sequence would have {length} tokens; the context holds {self.context_length}"
            )

    def _build(self, pieces: Sequence[Piece]) -> Step:
        lengths = [len(piece.token_ids) for piece in pieces]
        starts = np.cumsum([0, *lengths])[:-1]
        positions = np.concatenate(
            [
                np.arange(p.sequence.num_tokens, p.sequence.num_tokens + n, dtype=np.int32)
                for p, n in zip(pieces, lengths, strict=True)
            ]
        )
        row_seq = np.repeat(np.arange(len(pieces), dtype=np.int32), lengths)
        # Rows go on for their logits only, so every kept row's logits are wanted.
        kept = np.concatenate(
            [
                np.arange(start + n - _num_logits(p), start + n, dtype=np.int32)
                for p, start, n in zip(pieces, starts, lengths, strict=True)
            ]
        )
        sequences = [piece.sequence for piece in pieces]
        kinds = self.model.config.kinds
        given = [
            (start + piece.embedding_rows, piece.embeddings)
            for piece, start in zip(pieces, starts, strict=True)
            if piece.embedding_rows is not None and piece.embeddings is not None
        ]
        return Step(
            token_ids=np.concatenate([piece.token_ids for piece in pieces]).astype(np.int32),
            positions=positions,
            pages={k: self.cache.page_table(k, sequences, row_seq, positions) for k in kinds},
            kept_rows=kept,
            kept_pages={
                k: self.cache.page_table(k, sequences, row_seq[kept], positions[kept])
                for k in kinds
            },
            wants_logits=np.arange(len(kept), dtype=np.int32),
            embedding_rows=(
                np.concatenate([r for r, _ in given]).astype(np.int32) if given else None
            ),
            embeddings=np.concatenate([e for _, e in given]) if given else None,
        )


def _num_logits(piece: Piece) -> int:
    return {"none": 0, "last": 1, "all": len(piece.token_ids)}[piece.wants_logits]
