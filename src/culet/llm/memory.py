"""The byte plan of a loaded model: what each group of bytes takes, planned and actual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from culet.engine.config import EngineConfig
from culet.engine.kv_cache import plan_groups
from culet.errors import CapacityError
from culet.formats.binding import Binding
from culet.formats.checkpoint import Checkpoint
from culet.llm.describe import role_of
from culet.models.config import ModelConfig

# What the interpreter, buffers of a step and the operating system's caches are left.
_RESERVED_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """One group of bytes.

    Attributes:
        planned_bytes: computed from headers, before anything was loaded.
        actual_bytes: held in memory by this process; bytes that stay in the mapped file and are
            read from there don't count.
    """

    name: str
    planned_bytes: int
    actual_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """All groups: weights by role, and K/V by attention kind.

    Attributes:
        resident_bytes: what the operating system counts for the process; None if unknown.
    """

    groups: tuple[MemoryGroup, ...]
    resident_bytes: int | None

    @property
    def planned_bytes(self) -> int:
        return sum(group.planned_bytes for group in self.groups)

    @property
    def actual_bytes(self) -> int:
        return sum(group.actual_bytes for group in self.groups)


def stored_bytes_by_role(checkpoint: Checkpoint, binding: Binding) -> dict[str, int]:
    """Bytes of the tensors that the model uses, as stored, by role."""
    totals: Counter[str] = Counter()
    for name, canonical in {s.name: c for c, s in binding.sources.items()}.items():
        totals[role_of(canonical)] += checkpoint.info(name).num_bytes
    return dict(totals)


def held_bytes_by_role(held: Mapping[str, int]) -> dict[str, int]:
    """The same of what a backend holds, from bytes by canonical name."""
    totals: Counter[str] = Counter()
    for canonical, num_bytes in held.items():
        totals[role_of(canonical)] += num_bytes
    return dict(totals)


def kv_bytes(config: ModelConfig, engine: EngineConfig) -> int:
    """Bytes of the whole KV cache."""
    return sum(plan.num_bytes for plan in plan_groups(config, engine))


def fitting_context(config: ModelConfig, engine: EngineConfig, available_bytes: int | None) -> int:
    """The longest context, up to the engine's, whose KV cache fits in memory, in whole pages.

    Raises:
        CapacityError: not even one page of tokens fits.
    """
    if available_bytes is None:
        return engine.context_length
    budget = available_bytes - _RESERVED_BYTES

    def fits(num_tokens: int) -> bool:
        return kv_bytes(config, with_context(engine, num_tokens)) <= budget

    if fits(engine.context_length):
        return engine.context_length
    low, high = 0, engine.context_length // engine.page_tokens
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * engine.page_tokens) else (low, middle)
    if low == 0:
        raise CapacityError(
            f"the KV cache of {engine.page_tokens} tokens does not fit: {max(0, budget) >> 20} MiB "
            f"are left beside the weights, {_RESERVED_BYTES >> 20} MiB of them kept for the rest"
        )
    return low * engine.page_tokens


def with_context(engine: EngineConfig, num_tokens: int) -> EngineConfig:
    """The same engine with another context length."""
    return EngineConfig(
        context_length=num_tokens,
        max_seqs=engine.max_seqs,
        prefill_tokens=engine.prefill_tokens,
        page_tokens=engine.page_tokens,
        kv_type=engine.kv_type,
    )
