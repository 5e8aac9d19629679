"""The byte plan of a loaded model: what each group of bytes takes, planned and actual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from culet.engine.config import EngineConfig
from culet.engine.kv_cache import least_kv_bytes, plan_kv
from culet.errors import CapacityError
from culet.llm.describe import role_of
from culet.llm.overhead import workspace_bytes
from culet.models.config import ModelConfig

_MIB = 1 << 20
# What is left to the rest: the interpreter with its modules and threads; of a vocabulary's size the
# tables of tokenizer and grammars; buffers of a step.
_MOST_RESERVED_BYTES = 512 * _MIB
_PROCESS_BYTES = 128 * _MIB
_BYTES_PER_ID = 1024
# The share of free memory that K and V of many sequences may take.
_KV_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """One group of bytes.

    Attributes:
        planned_bytes: of the process's own memory, computed from headers before anything was
            loaded.
        actual_bytes: held in memory by this process; bytes that stay in the mapped file and are
            read from there don't count. None for what isn't counted apart.
        mapped_bytes: planned to be read from the mapped file whenever the model runs.
        by_row_bytes: mapped too, but read row by row as tokens need it.
    """

    name: str
    planned_bytes: int
    actual_bytes: int | None
    mapped_bytes: int = 0
    by_row_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """All groups: weights by role, K/V by attention kind, and what runs with them.

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
        """Of the groups that are counted apart: weights and K/V."""
        return sum(group.actual_bytes or 0 for group in self.groups)

    @property
    def planned_resident_bytes(self) -> int:
        """Own memory, and what is read from the mapped file whenever the model runs."""
        return sum(group.planned_bytes + group.mapped_bytes for group in self.groups)


def held_bytes_by_role(held: Mapping[str, int]) -> dict[str, int]:
    """Bytes that a backend holds, by role, from those by canonical name."""
    totals: Counter[str] = Counter()
    for canonical, num_bytes in held.items():
        totals[role_of(canonical)] += num_bytes
    return dict(totals)


def reserved_bytes(config: ModelConfig, engine: EngineConfig) -> int:
    """What neither weights nor K and V may take."""
    tables = config.vocab_size * _BYTES_PER_ID
    return min(_MOST_RESERVED_BYTES, _PROCESS_BYTES + tables + workspace_bytes(config, engine))


def fitting_config(
    config: ModelConfig, engine: EngineConfig, available_bytes: int | None
) -> EngineConfig:
    """The engine's config with a KV budget, and with the longest context, up to its own, that fits.

    One sequence of that context fits in the budget that the engine has, or else in what is left of
    `available_bytes` after a reserve; more sequences get `_KV_SHARE` of `available_bytes` then.

    Raises:
        CapacityError: not even one page of tokens fits.
    """
    if available_bytes is None and engine.kv_bytes is None:
        alone = plan_kv(config, replace(engine, max_seqs=1, kv_bytes=None))
        return replace(engine, kv_bytes=alone.num_bytes)
    left = (available_bytes or 0) - reserved_bytes(config, engine)
    budget = left if engine.kv_bytes is None else engine.kv_bytes

    def with_pages(num_pages: int) -> EngineConfig:
        num_tokens = min(num_pages * engine.page_tokens, engine.context_length)
        return replace(engine, context_length=num_tokens, kv_bytes=budget)

    def fits(num_pages: int) -> bool:
        try:
            plan_kv(config, with_pages(num_pages))
        except CapacityError:
            return False
        return True

    low, high = 0, -(-engine.context_length // engine.page_tokens)
    if fits(high):
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if low == 0:
        shortest = with_pages(1)
        raise CapacityError(
            f"the KV cache of {engine.page_tokens} tokens takes {least_kv_bytes(config, shortest)} "
            f"bytes and may take {max(0, budget)}"
        )
    found = with_pages(low)
    if engine.kv_bytes is not None or available_bytes is None:
        return found
    share = max(int(available_bytes * _KV_SHARE), least_kv_bytes(config, found))
    return replace(found, kv_bytes=min(budget, share))
