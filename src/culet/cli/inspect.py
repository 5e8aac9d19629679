"""`culet inspect`: metadata, tensors by type, the layer map, and where the bytes would go."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sized
from dataclasses import asdict
from typing import Any

import numpy as np

from culet.cli.options import add_model_argument, positive_int, resolve_model
from culet.cli.output import format_bytes, print_json
from culet.engine.config import EngineConfig
from culet.engine.kv_cache import plan_kv
from culet.llm.describe import Description, describe
from culet.models.config import LayerSpec, ModelConfig
from culet.ops.interface import KvType

_SHOWN_ITEMS = 8
_SHOWN_CHARACTERS = 70


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument("--ctx", type=positive_int, metavar="N", help="context for the KV figures")
    parser.add_argument("--kv-type", choices=["f16", "bf16", "f32", "q8_0"], default="f16")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    found = describe(resolve_model(args.model), header_only=True)
    num_ctx = args.ctx or found.config.context_length
    kv_bytes = kv_bytes_by_kind(found.config, num_ctx, args.kv_type)
    if args.json:
        print_json(as_json(found, num_ctx, kv_bytes))
        return 0
    for line in report(found, num_ctx, kv_bytes, args.tensors):
        print(line)
    return 0


def kv_bytes_by_kind(config: ModelConfig, num_ctx: int, kv_type: KvType) -> dict[str, int]:
    """Bytes of K and V of one sequence of `num_ctx` tokens, by attention kind."""
    engine = EngineConfig(context_length=num_ctx, max_seqs=1, kv_type=kv_type)
    return {group.kind: group.num_bytes for group in plan_kv(config, engine).groups.values()}


def report(
    found: Description, num_ctx: int, kv_bytes: Mapping[str, int], all_tensors: bool
) -> Iterator[str]:
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
    yield "bytes"
    for role, num_bytes in found.bytes_by_role().items():
        where = {"per-layer table": "on disk, read by row", "not used": "never read"}.get(role, "")
        yield f"  {role:<28} {format_bytes(num_bytes):>11}  {where}".rstrip()
    for kind, num_bytes in kv_bytes.items():
        yield f"  {f'K/V, {kind}, {num_ctx} tokens':<28} {format_bytes(num_bytes):>11}"


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


def as_json(found: Description, num_ctx: int, kv_bytes: Mapping[str, int]) -> dict[str, Any]:
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
        "kv": {"context_length": num_ctx, "bytes": dict(kv_bytes)},
    }
