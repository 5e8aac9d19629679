"""What a model sees of a batch (`Step`), what it writes (`StepOutput`), and the model protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from culet.models.config import AttentionKind, ModelConfig
from culet.ops.interface import Array, Int32Array, KvLayer, PageTable


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One forward pass: rows of any number of sequences, each a token at a position.

    A row that nothing is wanted of ends after the last KV-owning layer has written its K and V;
    the runner decides which rows go on, a model never branches on a value.

    Attributes:
        token_ids: [n]; where an embedding overrides a row, the id of its per-layer row (pad).
        positions: [n] absolute positions.
        pages: per attention kind, the page table over all n rows.
        kept_rows: [m] ascending indices of the rows that go through all layers.
        kept_pages: per attention kind, the page table over the kept rows.
        embedding_rows: [e] rows whose embedding is given (media), used unscaled.
        embeddings: float32 [e, hidden] or None.
        wants_logits: [k] indices into kept_rows whose logits are computed.
    """

    token_ids: Int32Array
    positions: Int32Array
    pages: Mapping[AttentionKind, PageTable]
    kept_rows: Int32Array
    kept_pages: Mapping[AttentionKind, PageTable]
    wants_logits: Int32Array
    embedding_rows: Int32Array | None = None
    embeddings: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StepOutput:
    """Buffers of one step's results, valid after `ops.sync()`.

    Attributes:
        hidden: [m, hidden] kept rows after the output norm.
        logits: [k, vocab] rows of `wants_logits`, after soft-capping; None when k is 0.
    """

    hidden: Array
    logits: Array | None


class Model(Protocol):
    """A loaded model: config, weights, and a forward pass that enqueues ops."""

    config: ModelConfig

    def forward(self, step: Step, kv: Mapping[int, KvLayer]) -> StepOutput:
        """Enqueue one step. `kv` maps each owning layer's index to its storage."""
        ...
