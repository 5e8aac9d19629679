"""Pages of K and V: how many there are, which sequence holds which, and what they cost.

One pool per attention kind. A page holds `page_tokens` tokens of all layers of its kind that own
K/V; layers without K/V of their own have no storage and read their owner's. Sliding pages are freed
as soon as no later token can see them. Knows no model code and no scheduling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from culet.engine.config import EngineConfig
from culet.errors import CapacityError
from culet.models.config import AttentionKind, LayerSpec, ModelConfig
from culet.ops.interface import Int32Array, KvLayer, KvType, Ops, PageTable

_GROUP_BYTES: dict[KvType, tuple[int, int]] = {  # values of a group, bytes of a group
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
        per_seq = _ceil_div(engine.context_length, engine.page_tokens)
        if window is not None:
            # A step of n rows touches the n tokens and the window before the first; a run of m
            # tokens that begins anywhere touches at most (m + page - 2) // page + 1 pages.
            span = window - 1 + min(engine.prefill_tokens, engine.context_length)
            per_seq = min(per_seq, (span + engine.page_tokens - 2) // engine.page_tokens + 1)
        values, group_bytes = _GROUP_BYTES[engine.kv_type]
        token_values = sum(2 * spec.num_kv_heads * spec.head_dim for spec in layers)
        page_bytes = engine.page_tokens * token_values // values * group_bytes
        plans.append(GroupPlan(kind, layers, window, per_seq * engine.max_seqs, page_bytes))
    return tuple(plans)


@dataclass(slots=True, eq=False)
class SequenceKv:
    """The pages of one sequence.

    Attributes:
        num_tokens: tokens whose K and V are stored.
        first_page: per kind, the number (position // page_tokens) of the first page still held.
        pages: per kind, page ids in order of position.
    """

    num_tokens: int = 0
    first_page: dict[AttentionKind, int] = field(default_factory=dict)
    pages: dict[AttentionKind, list[int]] = field(default_factory=dict)


class KvCache:
    """The pools, and the storage of every owning layer."""

    def __init__(self, ops: Ops, model: ModelConfig, engine: EngineConfig) -> None:
        self.page_tokens = engine.page_tokens
        self.groups = {plan.kind: plan for plan in plan_groups(model, engine)}
        # Lower page ids first: a short conversation touches little of the storage.
        self._free = {
            kind: list(range(plan.num_pages - 1, -1, -1)) for kind, plan in self.groups.items()
        }
        self.layers: Mapping[int, KvLayer] = {
            spec.index: ops.kv_layer(
                plan.num_pages,
                engine.page_tokens,
                spec.num_kv_heads,
                spec.head_dim,
                engine.kv_type,
            )
            for plan in self.groups.values()
            for spec in plan.layers
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of all storage."""
        return sum(layer.num_bytes for layer in self.layers.values())

    def num_free_pages(self, kind: AttentionKind) -> int:
        return len(self._free[kind])

    def new_sequence(self) -> SequenceKv:
        """A sequence without tokens or pages."""
        return SequenceKv(
            first_page=dict.fromkeys(self.groups, 0), pages={kind: [] for kind in self.groups}
        )

    def extend(self, sequence: SequenceKv, num_new: int) -> None:
        """Free what `num_new` further tokens can't see, and hold pages for them.

        Raises:
            CapacityError: too few pages are free; then nothing has been taken.
        """
        for kind in self.groups:
            self._trim(sequence, kind)
        end = sequence.num_tokens + num_new
        missing = {kind: self._num_missing(sequence, kind, end) for kind in self.groups}
        for kind, count in missing.items():
            if count > len(self._free[kind]):
                raise CapacityError(
                    f"the KV cache has {len(self._free[kind])} free pages of {kind} layers; "
                    f"{count} are needed for {num_new} more tokens"
                )
        for kind, count in missing.items():
            sequence.pages[kind] += [self._free[kind].pop() for _ in range(count)]

    def free(self, sequence: SequenceKv) -> None:
        """Give all pages back; the sequence is empty afterwards."""
        for kind, pages in sequence.pages.items():
            self._free[kind] += reversed(pages)
            pages.clear()
            sequence.first_page[kind] = 0
        sequence.num_tokens = 0

    def page_table(
        self,
        kind: AttentionKind,
        sequences: Sequence[SequenceKv],
        row_seq: Int32Array,
        positions: Int32Array,
    ) -> PageTable:
        """The page table of rows of these sequences."""
        pages = [sequence.pages[kind] for sequence in sequences]
        offsets = np.cumsum([0, *map(len, pages)], dtype=np.int32)
        return PageTable(
            page_tokens=self.page_tokens,
            row_seq=row_seq,
            positions=positions,
            seq_pages=offsets,
            first_page=np.array([s.first_page[kind] for s in sequences], dtype=np.int32),
            pages=np.array([page for held in pages for page in held], dtype=np.int32),
        )

    def _trim(self, sequence: SequenceKv, kind: AttentionKind) -> None:
        window = self.groups[kind].window
        if window is None:
            return
        first_seen = max(0, sequence.num_tokens - window + 1)
        num_unseen = min(
            first_seen // self.page_tokens - sequence.first_page[kind], len(sequence.pages[kind])
        )
        if num_unseen > 0:
            self._free[kind] += reversed(sequence.pages[kind][:num_unseen])
            del sequence.pages[kind][:num_unseen]
            sequence.first_page[kind] += num_unseen

    def _num_missing(self, sequence: SequenceKv, kind: AttentionKind, num_tokens: int) -> int:
        held = sequence.first_page[kind] + len(sequence.pages[kind])
        return max(0, _ceil_div(num_tokens, self.page_tokens) - held)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
