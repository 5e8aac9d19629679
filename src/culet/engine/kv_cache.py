"""Storage of K and V: what pages cost, how many are needed, and the arrays behind them.

Layers of one attention kind that own K/V share one numbering of pages (`engine.pages`); layers
without K/V of their own have no storage and read their owner's. Knows no scheduling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from culet.engine.config import EngineConfig
from culet.engine.pages import PageGroup, Pages, Runs
from culet.models.config import AttentionKind, LayerSpec, ModelConfig
from culet.ops.interface import Int32Array, KvLayer, KvType, Ops, PageTable

_GROUPS: dict[KvType, tuple[int, int]] = {  # values of a stored group, and its bytes
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
}


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One attention kind's pages.

    Attributes:
        window: tokens that a row sees, itself included; None for all.
        page_bytes: of one page, over all its layers.
    """

    kind: AttentionKind
    layers: tuple[LayerSpec, ...]
    window: int | None
    num_pages: int
    page_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.num_pages * self.page_bytes


def plan_groups(model: ModelConfig, engine: EngineConfig) -> tuple[GroupPlan, ...]:
    """The pages that `max_seqs` sequences of `context_length` tokens need at most."""
    plans = []
    for kind in model.kinds:
        layers = model.owning_layers(kind)
        window = layers[0].window
        per_seq = -(-engine.context_length // engine.page_tokens)
        if window is not None:
            # A step of n rows touches the n tokens and the window before the first; a run of m
            # tokens that begins anywhere touches at most (m + page - 2) // page + 1 pages.
            span = window - 1 + min(engine.prefill_tokens, engine.context_length)
            per_seq = min(per_seq, (span + engine.page_tokens - 2) // engine.page_tokens + 1)
        token_values = sum(2 * spec.num_kv_heads * spec.head_dim for spec in layers)
        values, group_bytes = _GROUPS[engine.kv_type]
        page_bytes = engine.page_tokens * token_values // values * group_bytes
        plans.append(GroupPlan(kind, layers, window, per_seq * engine.max_seqs, page_bytes))
    return tuple(plans)


class KvCache:
    """The pages of a model's cache and their storage.

    Attributes:
        pages: which pages are held; whoever schedules allocates and frees there.
        layers: storage by the index of the owning layer.
    """

    def __init__(self, ops: Ops, model: ModelConfig, engine: EngineConfig) -> None:
        plans = plan_groups(model, engine)
        self.pages = Pages(
            engine.page_tokens,
            {plan.kind: PageGroup(plan.num_pages, plan.window) for plan in plans},
        )
        self.layers: Mapping[int, KvLayer] = {
            spec.index: ops.kv_layer(
                plan.num_pages,
                engine.page_tokens,
                spec.num_kv_heads,
                spec.head_dim,
                engine.kv_type,
            )
            for plan in plans
            for spec in plan.layers
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of all storage."""
        return sum(layer.num_bytes for layer in self.layers.values())

    def page_table(
        self,
        kind: AttentionKind,
        sequences: Sequence[Runs],
        row_seq: Int32Array,
        positions: Int32Array,
    ) -> PageTable:
        """The page table of rows of sequences that hold these runs of pages."""
        runs = [sequence[kind] for sequence in sequences]
        return PageTable(
            page_tokens=self.pages.page_tokens,
            row_seq=row_seq,
            positions=positions,
            seq_pages=np.cumsum([0, *(len(run.pages) for run in runs)], dtype=np.int32),
            first_page=np.array([run.first for run in runs], dtype=np.int32),
            pages=np.array([page for run in runs for page in run.pages], dtype=np.int32),
        )
