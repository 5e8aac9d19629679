"""From the names that lie in a file to the tensors of a model, once, before weights are read.

`bind_names` accounts for every name by the table in `names`; `load_source` reads one tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from culet.errors import ModelFileError, UnsupportedModelError
from culet.formats.checkpoint import Checkpoint
from culet.formats.names import (
    EXPERTS_FUSED,
    EXPERTS_SPLIT,
    FUSED_QKV,
    GROUPS,
    HEAD,
    HF_HEADS,
    HF_PREFIXES,
    LAYER,
    LAYER_GEMMA4,
    LAYER_PLE,
    MODEL,
    MODEL_GEMMA4,
    MODEL_PLE,
    Kind,
    LayerFacts,
    ModelFacts,
    Row,
)
from culet.quant.tensor import QTensor
from culet.quant.tiles import row_part
from culet.quant.types import BY_NAME, QuantType

Transform = Literal["none", "plus_one"]


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Where a canonical tensor comes from.

    Attributes:
        name: the tensor's name in the file.
        transform: `plus_one` adds 1 to each value (see `names.Row.is_gain`).
        rows: the slice [start, end) of the tensor's rows, if it is a part of a fused one.
        scale_name: the file's NVFP4 factor of the tensor, if it has one.
    """

    canonical: str
    name: str
    transform: Transform = "none"
    rows: tuple[int, int] | None = None
    scale_name: str | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """The result of `bind_names`; every name of the file is in exactly one of its parts.

    Attributes:
        sources: by canonical name.
        companions: names that the sources use beside their own (`.scale`, `.input_scale`).
        dropped: names that the model has no use for: K and V of layers that share another's, a
            tied head stored twice.
        unused: number of tensors by group, such as {"vision tower": 658}.
    """

    sources: Mapping[str, TensorSource]
    companions: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    unused: Mapping[str, int] = field(default_factory=dict)

    def describe_unused(self) -> str | None:
        """One line for the log about tensors that are left alone; None if there are none."""
        groups = [f"{name} ({_tensors(count)})" for name, count in self.unused.items()]
        return "not used: " + ", ".join(groups) if groups else None


def bind_names(kind: Kind, facts: ModelFacts, names: Iterable[str], file_label: str) -> Binding:
    """Find every tensor that the model needs among the names in a file.

    Args:
        file_label: the file or folder, for messages.

    Raises:
        ModelFileError: a required tensor is missing, or there is one that the model has no place
            for (using such a file without it would silently give other answers).
    """
    binder = _Binder(kind, facts, list(names), file_label)
    binder.bind_model()
    for index, layer in enumerate(facts.layers):
        binder.bind_layer(index, layer)
    return binder.finish()


class _Binder:
    """The state of one `bind_names` call: which names are still to be accounted for."""

    def __init__(self, kind: Kind, facts: ModelFacts, names: list[str], file_label: str) -> None:
        self.kind = kind
        self.facts = facts
        self.file_label = file_label
        self.left = dict.fromkeys(names)
        self.sources: dict[str, TensorSource] = {}
        self.companions: list[str] = []
        self.dropped: list[str] = []
        self.hf_prefix = self._find_hf_prefix() if kind == "safetensors" else ""

    def bind_model(self) -> None:
        rows = MODEL
        if self.facts.architecture == "gemma4":
            rows += MODEL_GEMMA4
        if self.facts.has_ple:
            rows += MODEL_PLE
        for row in rows:
            self._bind(row, "", self.hf_prefix, None)
        self._bind_head()

    def bind_layer(self, index: int, layer: LayerFacts) -> None:
        rows = LAYER
        if self.facts.architecture == "gemma4":
            rows += LAYER_GEMMA4 + self._expert_rows(index)
        if self.facts.has_ple:
            rows += LAYER_PLE
        if f"blk.{index}.{FUSED_QKV}" in self.left:
            rows = tuple(r for r in rows if r.canonical not in ("attn_q", "attn_k", "attn_v"))
            self._bind_fused_qkv(index, layer)
        file_prefix = f"blk.{index}." if self.kind == "gguf" else f"{self.hf_prefix}layers.{index}."
        for row in rows:
            self._bind(row, f"layers.{index}.", file_prefix, layer)

    def finish(self) -> Binding:
        unused: Counter[str] = Counter()
        for name in self.left:
            group = self._group(name)
            if group is None:
                raise ModelFileError(
                    f"{self.file_label}: tensor {name} has no place in a {self.facts.architecture} "
                    f"model of {len(self.facts.layers)} layers"
                )
            unused[group] += 1
        return Binding(self.sources, tuple(self.companions), tuple(self.dropped), dict(unused))

    def _find_hf_prefix(self) -> str:
        for prefix in HF_PREFIXES:
            if f"{prefix}embed_tokens.weight" in self.left:
                return prefix
        raise self._missing("model.embed_tokens.weight")

    def _expert_rows(self, index: int) -> tuple[Row, ...]:
        split = self.kind == "gguf" and f"blk.{index}.{EXPERTS_SPLIT[0].gguf}" in self.left
        return EXPERTS_SPLIT if split else (EXPERTS_FUSED,)

    def _bind(
        self, row: Row, canonical_prefix: str, file_prefix: str, layer: LayerFacts | None
    ) -> None:
        suffix = row.gguf if self.kind == "gguf" else row.hf
        if suffix is None:
            return
        name = file_prefix + suffix
        wanted = layer is None or row.when(layer)
        if not wanted:
            if row.otherwise == "drop":
                self._drop(name, row)
            return
        if name not in self.left:
            if row.presence == "required":
                raise self._missing(name)
            return
        del self.left[name]
        plus_one = (
            row.is_gain and self.facts.architecture == "gemma3" and self.kind == "safetensors"
        )
        source = TensorSource(
            canonical_prefix + row.canonical,
            name,
            transform="plus_one" if plus_one else "none",
            scale_name=self._take_companions(name, own_scale=row.is_linear),
        )
        self.sources[source.canonical] = source

    def _bind_head(self) -> None:
        heads = ("output.weight",) if self.kind == "gguf" else HF_HEADS
        for name in heads:
            if name not in self.left:
                continue
            if self.kind == "safetensors" and self.facts.tied_head:
                self._drop(name, HEAD)
                continue
            del self.left[name]
            scale_name = self._take_companions(name)
            self.sources["output"] = TensorSource("output", name, scale_name=scale_name)
            return
        if self.kind == "safetensors" and not self.facts.tied_head:
            raise self._missing(HF_HEADS[0])

    def _bind_fused_qkv(self, index: int, layer: LayerFacts) -> None:
        """Rows of Q, then K, then V (llama.cpp's converter option --fuse-qkv)."""
        name = f"blk.{index}.{FUSED_QKV}"
        del self.left[name]
        scale_name = self._take_companions(name)
        parts = {"attn_q": (0, layer.q_rows)}
        if layer.owns_kv:
            parts["attn_k"] = (layer.q_rows, layer.q_rows + layer.kv_rows)
            if not layer.value_is_key:
                parts["attn_v"] = (layer.q_rows + layer.kv_rows, layer.q_rows + 2 * layer.kv_rows)
        for part, rows in parts.items():
            canonical = f"layers.{index}.{part}"
            self.sources[canonical] = TensorSource(
                canonical, name, rows=rows, scale_name=scale_name
            )

    def _take_companions(self, name: str, own_scale: bool = True) -> str | None:
        """Account for a linear's NVFP4 companions; returns the name of its factor, if any.

        Not `own_scale`: the tensor's `.scale`, if any, has a row of its own in the table.

        `.input_scale` is for engines that also round activations to NVFP4: they divide by it before
        and multiply by it after, so it cancels in exact arithmetic. Ours are fp32, or int8 with
        scales found at run time, and have no use for it.
        """
        if self.kind != "gguf":
            return None
        base = name.removesuffix(".weight")
        scale_name = f"{base}.scale"
        candidates = [f"{base}.input_scale"] + ([scale_name] if own_scale else [])
        found = [companion for companion in candidates if companion in self.left]
        for companion in found:
            del self.left[companion]
        self.companions += found
        return scale_name if scale_name in found else None

    def _drop(self, name: str, row: Row) -> None:
        if name in self.left:
            del self.left[name]
            self.dropped.append(name)
            if row.is_linear:
                self._take_companions(name)

    def _group(self, name: str) -> str | None:
        bare = name.removeprefix("model.") if self.kind == "safetensors" else name
        for prefix, group in GROUPS[self.kind]:
            if bare.startswith(prefix):
                return group
        return None

    def _missing(self, name: str) -> ModelFileError:
        return ModelFileError(f"{self.file_label}: tensor {name} is missing")


def check_source(checkpoint: Checkpoint, source: TensorSource) -> tuple[int, ...]:
    """The shape that `load_source` would give; errors as there, found without reading anything."""
    info = checkpoint.info(source.name)
    label = str(checkpoint.path)
    if info.qtype.is_integer:
        raise UnsupportedModelError(
            f"{label}: tensor {info.name} holds {info.qtype.name} integers where weights are needed"
        )
    if source.scale_name is not None:
        _check_scaled_type(label, info.name, info.qtype, source.scale_name)
    if source.rows is None:
        return info.shape
    _check_rows(label, info.name, info.shape, source)
    return (source.rows[1] - source.rows[0], info.shape[-1])


def load_source(checkpoint: Checkpoint, source: TensorSource) -> QTensor:
    """Read one tensor as the runtime wants it; a view of the file unless it must be transformed.

    Raises:
        ModelFileError: the fused tensor has too few rows, or a factor is not what the type takes.
    """
    tensor = checkpoint.tensor(source.name)
    if source.rows is not None:
        tensor = _row_slice(tensor, source, str(checkpoint.path))
    if source.scale_name is not None:
        tensor = replace(tensor, scale=_nvfp4_scale(checkpoint, tensor, source.scale_name))
    if source.transform == "plus_one":
        values = _as_float32(tensor, str(checkpoint.path)) + np.float32(1.0)
        data = values.view(np.uint8).reshape(tensor.num_rows, 4 * tensor.row_values)
        tensor = replace(tensor, qtype=BY_NAME["F32"], data=data)
    return tensor


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


def _row_slice(tensor: QTensor, source: TensorSource, file_label: str) -> QTensor:
    assert source.rows is not None
    _check_rows(file_label, tensor.name, tensor.shape, source)
    return row_part(tensor, *source.rows)


def _check_rows(file_label: str, name: str, shape: tuple[int, ...], source: TensorSource) -> None:
    assert source.rows is not None
    start, end = source.rows
    if len(shape) != 2 or end > shape[0]:
        raise ModelFileError(
            f"{file_label}: tensor {name} has shape {list(shape)}, "
            f"but {source.canonical} is its rows {start} to {end}"
        )


def _check_scaled_type(file_label: str, name: str, qtype: QuantType, scale_name: str) -> None:
    if qtype.name != "NVFP4":
        raise UnsupportedModelError(
            f"{file_label}: tensor {scale_name} is a factor of {name}, which is "
            f"{qtype.name}; only NVFP4 tensors have one"
        )


def _nvfp4_scale(checkpoint: Checkpoint, tensor: QTensor, scale_name: str) -> NDArray[np.float32]:
    """float32 [1], or [num_experts] for stacked experts."""
    _check_scaled_type(str(checkpoint.path), tensor.name, tensor.qtype, scale_name)
    scale = _as_float32(checkpoint.tensor(scale_name), str(checkpoint.path)).reshape(-1)
    allowed = (1, tensor.shape[0]) if len(tensor.shape) == 3 else (1,)
    if scale.size not in allowed:
        raise ModelFileError(
            f"{checkpoint.path}: tensor {scale_name} has {scale.size} values, "
            f"{tensor.name} takes {allowed[-1]}"
        )
    return scale


def _as_float32(tensor: QTensor, file_label: str) -> NDArray[np.float32]:
    """The values of an F32, F16 or BF16 tensor, in its shape."""
    if tensor.qtype.name == "F32":
        values = tensor.data.view(np.float32)
    elif tensor.qtype.name == "F16":
        values = tensor.data.view(np.float16).astype(np.float32)
    elif tensor.qtype.name == "BF16":
        values = (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        raise UnsupportedModelError(
            f"{file_label}: tensor {tensor.name} is {tensor.qtype.name}, must be F32, F16 or BF16"
        )
    return values.reshape(tensor.shape)
