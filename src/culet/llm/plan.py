"""The byte plan: what a model will take, by group, computed from headers before anything is read.

Computed for the CPU backend, which holds matrices as tiled planes. The `reference` backend reads
weights through the mapping and keeps them decoded as far as its own budget goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from culet import system
from culet.engine.config import EngineConfig
from culet.engine.kv_cache import least_kv_bytes, plan_kv
from culet.errors import CapacityError
from culet.formats.binding import Binding, check_source
from culet.formats.checkpoint import Checkpoint
from culet.formats.packed import PackedCheckpoint
from culet.llm.describe import role_of
from culet.llm.memory import fitting_config, reserved_bytes
from culet.llm.overhead import (
    ProgramBytes,
    metadata_bytes,
    rounding_bytes,
    tokenizer_bytes,
    workspace_bytes,
)
from culet.llm.placement import Holding
from culet.models.config import ModelConfig
from culet.quant.tiles import stored_layout, tiles_bytes
from culet.quant.types import QuantType

_TABLE = "per_layer_token_embd"
_ROPE_FREQS = "rope_freqs"  # read into the config, not kept
_FLOAT_BYTES = 4
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """One group of bytes.

    Attributes:
        file_bytes: as stored.
        mapped_bytes: read from the mapped file whenever the model runs, so resident, but shared
            between processes and given up when memory is short.
        by_row_bytes: mapped too, but only touched rows become resident.
        private_bytes: in the process's own memory.
    """

    name: str
    file_bytes: int = 0
    mapped_bytes: int = 0
    by_row_bytes: int = 0
    private_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BytePlan:
    """All groups of a model with an engine."""

    groups: tuple[PlannedGroup, ...]

    @property
    def file_bytes(self) -> int:
        return sum(group.file_bytes for group in self.groups)

    @property
    def mapped_bytes(self) -> int:
        return sum(group.mapped_bytes for group in self.groups)

    @property
    def private_bytes(self) -> int:
        return sum(group.private_bytes for group in self.groups)

    @property
    def resident_bytes(self) -> int:
        """What has to be in RAM at once."""
        return self.mapped_bytes + self.private_bytes


def plan_bytes(
    checkpoint: Checkpoint,
    config: ModelConfig,
    binding: Binding,
    holding: Holding,
    engine: EngineConfig,
    *,
    has_planes: bool = True,
    program: ProgramBytes | None = None,
) -> BytePlan:
    """The plan of a model; the engine's `kv_bytes` decides about more than one sequence.

    Args:
        has_planes: the backend re-encodes matrices into private planes.
        program: a group too, where it is known.

    Raises:
        CapacityError: `kv_bytes` doesn't hold one sequence.
    """
    weights = list(_weights(checkpoint, binding, holding, has_planes))
    groups = list(_merged(weights))
    if has_planes and not isinstance(checkpoint, PackedCheckpoint):
        blocks = (group.private_bytes for group in weights if group.name != role_of(_TABLE))
        groups.append(PlannedGroup("huge pages", private_bytes=rounding_bytes(blocks)))
    for kind, group in plan_kv(config, engine).groups.items():
        groups.append(PlannedGroup(f"K/V, {kind}", private_bytes=group.num_bytes))
    groups.append(PlannedGroup("workspace", private_bytes=workspace_bytes(config, engine)))
    header, index = metadata_bytes(checkpoint)
    groups.append(PlannedGroup("metadata", header, header, private_bytes=index))
    groups.append(PlannedGroup("tokenizer", private_bytes=tokenizer_bytes(checkpoint, config)))
    if program is not None:
        groups.append(PlannedGroup("program", 0, program.mapped_bytes, 0, program.private_bytes))
    return BytePlan(tuple(groups))


def weight_groups(
    checkpoint: Checkpoint, binding: Binding, holding: Holding, *, has_planes: bool = True
) -> tuple[PlannedGroup, ...]:
    """The part of the plan that is weights, by role."""
    return tuple(_merged(_weights(checkpoint, binding, holding, has_planes)))


def plan_engine(
    checkpoint: Checkpoint,
    config: ModelConfig,
    binding: Binding,
    holding: Holding,
    engine: EngineConfig,
    weights: Iterable[PlannedGroup],
    may_shorten: bool,
) -> EngineConfig:
    """The engine's config with what fits beside the weights, before they are read.

    Args:
        weights: as `weight_groups` plans them; none for a backend with a budget of its own.
        may_shorten: a shorter context than the engine's will do.

    Raises:
        CapacityError: it doesn't fit; names need, what is available, and options that would help.
    """
    available = system.available_bytes()
    if available is None:
        return fitting_config(config, engine, None)
    need = sum(group.private_bytes for group in weights)
    reserve = reserved_bytes(config, engine)

    def refusal(what: str) -> CapacityError:
        advice = _advice(checkpoint, config, binding, holding, engine, available)
        return CapacityError(
            f"{checkpoint.path}: does not fit: of the {available // _MIB} MiB available the "
            f"weights take {need // _MIB} MiB and the program itself up to {reserve // _MIB} MiB, "
            f"and {what}; {advice}"
        )

    try:
        fitted = fitting_config(config, engine, available - need)
    except CapacityError as error:
        raise refusal(str(error)) from error
    kv_bytes = plan_kv(config, fitted).num_bytes
    if need + reserve + kv_bytes > available:  # of those that were asked for
        raise refusal(f"--kv-memory {engine.kv_bytes} would take {kv_bytes // _MIB} MiB")
    if fitted.context_length < engine.context_length and not may_shorten:
        room = "memory" if engine.kv_bytes is None else f"the {engine.kv_bytes} bytes it may take"
        raise CapacityError(
            f"{checkpoint.path}: the KV cache of {engine.context_length} tokens does not fit in "
            f"{room}; {fitted.context_length} tokens would"
        )
    return fitted


def longest_context(
    config: ModelConfig, engine: EngineConfig, weight_bytes: int, available_bytes: int | None
) -> int:
    """Tokens of the longest context, up to the engine's, that fits beside the weights."""
    left = None if available_bytes is None else available_bytes - weight_bytes
    try:
        return fitting_config(config, engine, left).context_length
    except CapacityError:
        return 0


def _advice(
    checkpoint: Checkpoint,
    config: ModelConfig,
    binding: Binding,
    holding: Holding,
    engine: EngineConfig,
    available_bytes: int,
) -> str:
    options = fitting_options(checkpoint, config, binding, holding, engine, available_bytes)
    found = next(options, None)
    return f"it would fit with {found}" if found else "no option makes it fit"


def fitting_options(
    checkpoint: Checkpoint,
    config: ModelConfig,
    binding: Binding,
    holding: Holding,
    engine: EngineConfig,
    available_bytes: int,
) -> Iterator[str]:
    """Options under which the plan fits, from the least change to the largest."""

    def fits(holding: Holding, engine: EngineConfig, mapped_weights: bool = False) -> bool:
        try:
            kv_bytes = plan_kv(config, engine).num_bytes
        except CapacityError:
            return False
        weights = () if mapped_weights else weight_groups(checkpoint, binding, holding)
        need = kv_bytes + sum(group.private_bytes for group in weights)
        return need + reserved_bytes(config, engine) <= available_bytes  # as `plan_engine` decides

    needed = least_kv_bytes(config, engine)
    if engine.kv_bytes is not None and engine.kv_bytes < needed:
        if fits(holding, replace(engine, max_seqs=1, kv_bytes=needed)):
            yield f"--kv-memory {needed}"
    elif engine.kv_bytes is not None:
        weights = sum(g.private_bytes for g in weight_groups(checkpoint, binding, holding))
        room = (available_bytes - weights - reserved_bytes(config, engine)) // _MIB * _MIB
        if needed <= room < engine.kv_bytes:
            yield f"--kv-memory {room // _MIB}MiB"
    least = replace(engine, context_length=engine.page_tokens, max_seqs=1)
    shorter = _longest_fitting(engine, lambda e: fits(holding, e))
    if shorter:
        yield f"--ctx {shorter}"
    on_disk = replace(holding, load_mode="mmap", table="disk", locks_table=False)
    if on_disk != holding:
        if fits(on_disk, engine):
            yield "--load-mode mmap --embed-weights disk"
        shorter = _longest_fitting(engine, lambda e: fits(on_disk, e))
        if shorter:
            yield f"--load-mode mmap --embed-weights disk --ctx {shorter}"
    if engine.kv_type != "q8_0" and fits(on_disk, replace(least, kv_type="q8_0")):
        yield f"--kv-type q8_0 --ctx {least.context_length}"
    if not isinstance(checkpoint, PackedCheckpoint) and fits(on_disk, least, mapped_weights=True):
        yield "a packed file (`culet pack`), whose weights need no memory of the process"


def _longest_fitting(engine: EngineConfig, fits: Callable[[EngineConfig], bool]) -> int:
    """The longest context in whole pages, below the engine's, that fits alone; 0 for none."""
    low, high = 0, engine.context_length // engine.page_tokens

    def alone(num_pages: int) -> EngineConfig:
        tokens = num_pages * engine.page_tokens
        return replace(engine, context_length=tokens, max_seqs=1)

    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(alone(middle)) else (low, middle)
    return low * engine.page_tokens


def _weights(
    checkpoint: Checkpoint, binding: Binding, holding: Holding, has_planes: bool
) -> Iterator[PlannedGroup]:
    """One group for each tensor in use, by its role's name."""
    counted: set[str] = set()
    for canonical, source in binding.sources.items():
        info = checkpoint.info(source.name)
        shape = check_source(checkpoint, source)
        file_bytes = 0 if source.name in counted else info.num_bytes
        counted.add(source.name)
        group = PlannedGroup(role_of(canonical), file_bytes)
        if canonical == _TABLE:
            by_row = holding.table == "disk"
            locked = by_row and holding.locks_table
            yield replace(
                group,
                mapped_bytes=info.num_bytes if locked else 0,
                by_row_bytes=info.num_bytes if by_row and not locked else 0,
                private_bytes=0 if by_row else info.num_bytes,
            )
        elif canonical == _ROPE_FREQS:
            yield group
        elif len(shape) < 2:
            yield replace(group, private_bytes=math.prod(shape) * _FLOAT_BYTES)
        elif not has_planes:
            decoded = math.prod(shape) * _FLOAT_BYTES
            yield replace(group, mapped_bytes=file_bytes, private_bytes=decoded)
        else:
            yield _planes(checkpoint, source.name, info.qtype, shape, group, holding)


def _planes(
    checkpoint: Checkpoint,
    name: str,
    qtype: QuantType,
    shape: tuple[int, ...],
    group: PlannedGroup,
    holding: Holding,
) -> PlannedGroup:
    """A matrix in planes: mapped from a packed file, or private.

    Float32 is planned as such; where all values turn out to be bf16, half is taken.
    """
    if isinstance(checkpoint, PackedCheckpoint):
        served = checkpoint.entries[name].served
        is_part = shape != checkpoint.info(name).shape
        if served is not None and not is_part:
            if holding.load_mode == "none":
                return replace(group, private_bytes=served.num_bytes)
            return replace(group, mapped_bytes=served.num_bytes)
    return replace(group, private_bytes=tiles_bytes(shape, qtype.ggml_id, stored_layout(qtype)))


def _merged(groups: Iterable[PlannedGroup]) -> Iterator[PlannedGroup]:
    """One group for each name, in order of first appearance."""
    totals: dict[str, PlannedGroup] = {}
    for group in groups:
        total = totals.get(group.name, PlannedGroup(group.name))
        totals[group.name] = PlannedGroup(
            group.name,
            total.file_bytes + group.file_bytes,
            total.mapped_bytes + group.mapped_bytes,
            total.by_row_bytes + group.by_row_bytes,
            total.private_bytes + group.private_bytes,
        )
    yield from totals.values()
