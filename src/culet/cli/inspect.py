"""`culet inspect`: metadata, tensors by type, the layer map, and where the bytes would go."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sized
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from culet import system
from culet.cli.options import (
    add_memory_options,
    add_model_argument,
    positive_int,
    resolve_model,
)
from culet.cli.output import format_bytes, print_json
from culet.engine.config import EngineConfig
from culet.formats.binding import Binding
from culet.formats.checkpoint import Checkpoint
from culet.llm.describe import Description, describe
from culet.llm.overhead import ProgramBytes
from culet.llm.placement import decide_holding
from culet.llm.plan import BytePlan, PlannedGroup, longest_context, plan_bytes, weight_groups
from culet.models.config import LayerSpec, ModelConfig

_SHOWN_ITEMS = 8
_SHOWN_CHARACTERS = 70


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument(
        "--ctx",
        "--context-length",
        type=positive_int,
        metavar="N",
        help="tokens of context for the figures of K and V (default: the model's)",
    )
    add_memory_options(parser)
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    holding = decide_holding(args.embed_weights, args.load_mode)
    program = ProgramBytes.of_this_process()
    plans: list[Planned] = []

    def examine(config: ModelConfig, checkpoint: Checkpoint, binding: Binding) -> None:
        engine = EngineConfig(
            context_length=args.ctx or config.context_length,
            max_seqs=1,
            kv_type=args.kv_type,
        )
        available = system.available_bytes()
        plan = plan_bytes(checkpoint, config, binding, holding, engine, program=program)
        groups = weight_groups(checkpoint, binding, holding)
        weights = sum(group.private_bytes for group in groups)
        fitting = longest_context(config, engine, weights, available)
        plans.append(Planned(plan, engine.context_length, available, fitting))

    found = describe(resolve_model(args.model), header_only=True, examine=examine)
    if args.json:
        print_json(as_json(found, plans[0]))
        return 0
    for line in report(found, plans[0], args.tensors):
        print(line)
    return 0


@dataclass(frozen=True, slots=True)
class Planned:
    """The byte plan with one sequence of `context_length` tokens.

    Attributes:
        available_bytes: memory that is free now; None if unknown.
        fitting_context: the longest context that would fit; 0 for none.
    """

    plan: BytePlan
    context_length: int
    available_bytes: int | None
    fitting_context: int


def report(found: Description, planned: Planned, all_tensors: bool) -> Iterator[str]:
    """The lines for people."""
    config = found.config
    yield f"{found.path}: {config.architecture}, {found.kind}, {format_bytes(found.file_bytes)}"
    yield from found.notes
    yield ""
    yield "metadata"
    for key, value in found.metadata.items():
        yield f"  {key} = {shown(value)}"
    yield ""
    yield "layers"
    yield from layer_lines(config.layers)
    yield ""
    yield "tensors"
    for name, (count, num_bytes) in by_type(found).items():
        yield f"  {name:<8} {count:>5}  {format_bytes(num_bytes):>11}"
    if all_tensors:
        for tensor in found.tensors:
            shape = " x ".join(str(n) for n in tensor.shape)
            yield f"  {tensor.name}  {tensor.type_name}  {shape}  {format_bytes(tensor.num_bytes)}"
    yield ""
    yield f"bytes, with a context of {planned.context_length} tokens"
    yield from plan_lines(planned)


def plan_lines(planned: Planned) -> Iterator[str]:
    """The plan as a table, and what would fit."""
    plan = planned.plan
    yield f"  {'':<18} {'in the file':>11} {'mapped':>11} {'by row':>11} {'private':>11}"
    by_row = sum(group.by_row_bytes for group in plan.groups)
    total = PlannedGroup("total", plan.file_bytes, plan.mapped_bytes, by_row, plan.private_bytes)
    for group in (*plan.groups, total):
        parts = (group.file_bytes, group.mapped_bytes, group.by_row_bytes, group.private_bytes)
        cells = " ".join(f"{format_bytes(n) if n else '-':>11}" for n in parts)
        yield f"  {group.name:<18} {cells}"
    if planned.available_bytes is not None:
        fits = f"a context of {planned.fitting_context} tokens fits"
        if not planned.fitting_context:
            fits = "it does not fit"
        yield f"  {format_bytes(planned.available_bytes)} of memory available: {fits}"


def layer_lines(layers: tuple[LayerSpec, ...]) -> Iterator[str]:
    """Runs of equal layers, one line each."""
    begin = 0
    for index in range(1, len(layers) + 1):
        if index < len(layers) and alike(layers[index], layers[begin]):
            continue
        spec = layers[begin]
        span = f"{begin}" if index == begin + 1 else f"{begin}-{index - 1}"
        window = f" {spec.window}" if spec.window else ""
        owner = "own K/V" if spec.owns_kv else f"K/V of layer {spec.kv_owner}"
        experts = (
            f", {spec.num_experts_used} of {spec.num_experts} experts {spec.expert_ffn_dim}"
            if spec.num_experts
            else ""
        )
        yield (
            f"  {span:>7}  {spec.attention}{window}, {spec.num_heads} heads x {spec.head_dim}, "
            f"{spec.num_kv_heads} KV, {owner}, MLP {spec.ffn_dim}{experts}"
        )
        begin = index


def alike(a: LayerSpec, b: LayerSpec) -> bool:
    """Whether two layers differ in nothing but their index."""
    if a.owns_kv != b.owns_kv or (not a.owns_kv and a.kv_owner != b.kv_owner):
        return False
    ignored = {"index", "kv_owner"}
    left, right = asdict(a), asdict(b)
    return all(left[k] == right[k] for k in left if k not in ignored)


def by_type(found: Description) -> dict[str, tuple[int, int]]:
    """Tensor count and bytes of each quant type, most bytes first."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in found.tensors:
        counts[tensor.type_name] += 1
        sizes[tensor.type_name] += tensor.num_bytes
    return {name: (counts[name], size) for name, size in sizes.most_common()}


def shown(value: Any) -> str:
    """A metadata value on one line: long texts cut, long arrays as their first items."""
    if isinstance(value, str):
        flat = value.replace("\n", "\\n")
        cut = flat if len(flat) <= _SHOWN_CHARACTERS else flat[:_SHOWN_CHARACTERS] + "..."
        return f"{cut} ({len(value)} characters)" if cut != flat else flat
    if isinstance(value, Sized) and not isinstance(value, Mapping | bytes):
        items = plain(value, limit=_SHOWN_ITEMS)
        rest = f", ... ({len(value)} items)" if len(value) > _SHOWN_ITEMS else ""
        return "[" + ", ".join(repr(i) for i in items) + rest + "]"
    return str(plain(value))


def plain(value: Any, limit: int | None = None) -> Any:
    """A metadata value as JSON can hold it; of sequences at most `limit` items."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(k): plain(v, limit) for k, v in value.items()}
    if isinstance(value, str) or not isinstance(value, Sized):
        return value
    count = len(value) if limit is None else min(limit, len(value))
    return [plain(value[i]) for i in range(count)]  # type: ignore[index]


def as_json(found: Description, planned: Planned) -> dict[str, Any]:
    """The object for scripts; arrays of over 1,000 items (vocabularies) as their length."""
    metadata = {
        key: {"items": len(value)}
        if isinstance(value, Sized) and not isinstance(value, str | Mapping) and len(value) > 1000
        else plain(value)
        for key, value in found.metadata.items()
    }
    return {
        "path": str(found.path),
        "format": found.kind,
        "architecture": found.config.architecture,
        "file_bytes": found.file_bytes,
        "notes": list(found.notes),
        "metadata": metadata,
        "layers": [asdict(spec) for spec in found.config.layers],
        "tensors": [asdict(t) for t in found.tensors],
        "bytes": dict(found.bytes_by_role()),
        "plan": {
            "context_length": planned.context_length,
            "groups": [asdict(group) for group in planned.plan.groups],
            "mapped_bytes": planned.plan.mapped_bytes,
            "private_bytes": planned.plan.private_bytes,
            "available_bytes": planned.available_bytes,
            "fitting_context": planned.fitting_context,
        },
    }
