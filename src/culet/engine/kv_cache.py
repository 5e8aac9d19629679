"""Storage of K and V: how many pages each attention kind gets, what they cost, and page tables.

A page holds `page_tokens` tokens of all layers of its kind that own K/V; layers without K/V of
their own have no storage and read their owner's. Which page belongs to whom is `engine.pages`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from culet.engine.config import EngineConfig
from culet.engine.pages import PageGroup, Pages, Runs
from culet.engine.prefix_cache import PageCopy
from culet.errors import CapacityError
from culet.models.config import AttentionKind, LayerSpec, ModelConfig
from culet.ops.interface import Int32Array, KvLayer, KvType, Ops, PageTable

_GROUP_BYTES: dict[KvType, tuple[int, int]] = {  # values of a group, bytes of a group
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
}
# Kept windows that there is room for besides those of running sequences, for each of these: the
# ends of the last prompt and of its answer, which is where the next turn of a chat departs.
_KEPT_WINDOWS = 2


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One attention kind's pages.

    Attributes:
        window: tokens that a row sees, itself included; None for all.
        token_bytes: of one token, over all the kind's owning layers.
        page_bytes: of one page.
    """

    kind: AttentionKind
    layers: tuple[LayerSpec, ...]
    window: int | None
    num_pages: int
    token_bytes: int
    page_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.num_pages * self.page_bytes


@dataclass(frozen=True, slots=True)
class KvPlan:
    """All pages of a model's cache; what is allocated equals `num_bytes`.

    Attributes:
        num_tokens: that the growing (full) pages hold, over all sequences.
    """

    page_tokens: int
    kv_type: KvType
    groups: Mapping[AttentionKind, GroupPlan]

    @property
    def num_bytes(self) -> int:
        return sum(group.num_bytes for group in self.groups.values())

    @property
    def num_tokens(self) -> int:
        counts = [g.num_pages for g in self.groups.values() if g.window is None]
        return self.page_tokens * min(counts, default=0)

    def describe(self) -> str:
        """One line for a person who starts the engine."""
        parts = []
        for group in self.groups.values():
            what = "window of" if group.window is not None else "growing,"
            size = f" {group.window} x" if group.window is not None else ""
            parts.append(
                f"{group.kind}: {what}{size} {group.token_bytes} B a token, {group.num_pages} pages"
            )
        return f"KV {self.kv_type}, {self.num_bytes / 1e6:.1f} MB ({'; '.join(parts)})"


def least_kv_bytes(model: ModelConfig, engine: EngineConfig) -> int:
    """Bytes that one sequence of `context_length` tokens needs, whatever `kv_bytes` says."""
    bare = _bare_groups(model, engine)
    least, _, _ = _page_counts(bare, engine)
    return sum(count * bare[kind].page_bytes for kind, count in least.items())


def plan_kv(model: ModelConfig, engine: EngineConfig) -> KvPlan:
    """How many pages each attention kind gets.

    At the least, one sequence of `context_length` tokens fits. What `kv_bytes` leaves goes to the
    windows of the other sequences, then to windows that the prefix cache keeps, then to growing
    pages until every sequence could have the whole context.

    Raises:
        CapacityError: `kv_bytes` does not hold one sequence.
    """
    bare = _bare_groups(model, engine)
    counts = _divide(*_page_counts(bare, engine), bare, engine)
    groups = {kind: replace(group, num_pages=counts[kind]) for kind, group in bare.items()}
    return KvPlan(engine.page_tokens, engine.kv_type, groups)


def _bare_groups(model: ModelConfig, engine: EngineConfig) -> dict[AttentionKind, GroupPlan]:
    """The groups without pages yet."""
    values, group_bytes = _GROUP_BYTES[engine.kv_type]
    bare: dict[AttentionKind, GroupPlan] = {}
    for kind in model.kinds:
        layers = model.owning_layers(kind)
        token_bytes = sum(
            2 * spec.num_kv_heads * (spec.head_dim // values * group_bytes) for spec in layers
        )
        page_bytes = token_bytes * engine.page_tokens
        bare[kind] = GroupPlan(kind, layers, layers[0].window, 0, token_bytes, page_bytes)
    return bare


Counts = dict[AttentionKind, int]


def _page_counts(
    groups: Mapping[AttentionKind, GroupPlan], engine: EngineConfig
) -> tuple[Counts, Counts, Counts]:
    """Pages for one sequence, for the windows of all running ones, and for all there is use for."""
    size = engine.page_tokens
    whole = -(-engine.context_length // size)
    least: Counts = {}
    running: Counts = {}
    most: Counts = {}
    for kind, group in groups.items():
        if group.window is None:
            least[kind] = running[kind] = whole
            most[kind] = whole * engine.max_seqs
            continue
        # A window that ends anywhere in a page, and the page that a step begins.
        one = min(whole, (group.window + size - 2) // size + 2)
        step = min(-(-engine.prefill_tokens // size), whole)
        least[kind] = one + step
        running[kind] = one * engine.max_seqs + step
        kept = _KEPT_WINDOWS * one * engine.max_seqs if engine.prefix_cache else 0
        most[kind] = running[kind] + kept
    return least, running, most


def _divide(
    least: Counts,
    running: Counts,
    most: Counts,
    groups: Mapping[AttentionKind, GroupPlan],
    engine: EngineConfig,
) -> Counts:
    """Pages of each kind: the least, then the two wishes as far as the bytes go."""
    if engine.kv_bytes is None:
        return most
    left = engine.kv_bytes - sum(n * groups[kind].page_bytes for kind, n in least.items())
    if left < 0:
        raise CapacityError(
            f"a context of {engine.context_length} tokens needs {engine.kv_bytes - left} bytes of "
            f"KV cache in {engine.kv_type}, but {engine.kv_bytes} may be used"
        )
    counts = dict(least)
    for wish in (running, most):
        for kind in sorted(wish, key=lambda k: k == "full"):  # windows first
            more = min(wish[kind] - counts[kind], left // groups[kind].page_bytes)
            counts[kind] += more
            left -= more * groups[kind].page_bytes
    return counts


class KvCache:
    """The pages of a model's cache and their storage.

    Attributes:
        pages: which pages are held; whoever schedules allocates and frees there.
        layers: storage by the index of the owning layer.
    """

    def __init__(self, ops: Ops, model: ModelConfig, engine: EngineConfig) -> None:
        """Raises `CapacityError` as `plan_kv` does."""
        self.plan = plan = plan_kv(model, engine)
        self._ops = ops
        self.pages = Pages(
            plan.page_tokens,
            {kind: PageGroup(group.num_pages, group.window) for kind, group in plan.groups.items()},
        )
        self.layers: Mapping[int, KvLayer] = {
            spec.index: ops.kv_layer(
                group.num_pages, plan.page_tokens, spec.num_kv_heads, spec.head_dim, plan.kv_type
            )
            for group in plan.groups.values()
            for spec in group.layers
        }
        assert self.num_bytes == plan.num_bytes, "the plan must equal what is allocated"

    @property
    def num_bytes(self) -> int:
        """Bytes allocated, over all layers."""
        return sum(layer.num_bytes for layer in self.layers.values())

    def group_bytes(self, kind: AttentionKind) -> int:
        """Bytes allocated for the layers of one group."""
        return sum(self.layers[spec.index].num_bytes for spec in self.plan.groups[kind].layers)

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Enqueue copies of pages, in their order."""
        for copy in copies:
            for spec in self.plan.groups[copy.kind].layers:
                self._ops.copy_page(self.layers[spec.index], copy.source, copy.target)

    def page_table(
        self,
        kind: AttentionKind,
        sequences: Sequence[Runs],
        row_seq: Int32Array,
        positions: Int32Array,
    ) -> PageTable:
        """The page table of rows of sequences that hold these runs of pages."""
        runs = [sequence[kind] for sequence in sequences]
        counts = [len(run.pages) for run in runs]
        offsets = np.zeros(len(runs) + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        return PageTable(
            page_tokens=self.plan.page_tokens,
            row_seq=row_seq,
            positions=positions,
            seq_pages=offsets,
            first_page=np.array([run.first for run in runs], dtype=np.int32),
            pages=np.array([page for run in runs for page in run.pages], dtype=np.int32),
        )
