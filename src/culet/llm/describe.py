"""What a model file holds and what serving it would take, from its headers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from culet.formats.binding import Binding
from culet.formats.checkpoint import Checkpoint
from culet.formats.opening import open_checkpoint
from culet.formats.packed import PackedCheckpoint
from culet.llm.loading import bind_checkpoint
from culet.models.config import ModelConfig
from culet.models.registry import read_config

Role = Literal["layers", "token table", "per-layer table", "head", "not used"]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the file.

    Attributes:
        role: the group of the byte plan that it belongs to; `not used` by a text model.
        shape: torch order.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    num_bytes: int
    role: Role


@dataclass(frozen=True, slots=True)
class Description:
    """A model file as its headers tell it.

    Attributes:
        metadata: key-values as stored; long arrays as sequences that stay in the file.
        notes: one sentence each about what will be left alone.
    """

    path: Path
    kind: Literal["gguf", "safetensors"]
    file_bytes: int
    metadata: Mapping[str, Any]
    config: ModelConfig
    tensors: tuple[StoredTensor, ...]
    notes: tuple[str, ...]

    def bytes_by_role(self) -> dict[Role, int]:
        totals: dict[Role, int] = {}
        for tensor in self.tensors:
            totals[tensor.role] = totals.get(tensor.role, 0) + tensor.num_bytes
        return totals


def describe(
    path: Path,
    *,
    header_only: bool = False,
    examine: Callable[[ModelConfig, Checkpoint, Binding], None] | None = None,
) -> Description:
    """Read the headers of a file or folder; no weight is touched.

    Args:
        header_only: accept files whose weights are cut off.
        examine: further checks of the opened file; raises what they find.

    Raises:
        UsageError, ModelFileError, UnsupportedModelError: it would not be served; the message
            says why.
    """
    checkpoint = open_checkpoint(path, header_only=header_only)
    try:
        config = read_config(checkpoint)
        binding = bind_checkpoint(config, checkpoint)
        if examine is not None:
            examine(config, checkpoint, binding)
        used = {s.name: canonical for canonical, s in binding.sources.items()}
        companions = set(binding.companions)
        tensors = []
        for name in checkpoint.tensor_names():
            info = checkpoint.info(name)
            role = role_of(used.get(name), name in companions)
            tensors.append(StoredTensor(name, info.qtype.name, info.shape, info.num_bytes, role))
        notes = [binding.describe_unused()]
        num_cut = sum(not checkpoint.has_data(t.name) for t in tensors)
        if num_cut:
            notes.append(f"cut off: the bytes of {num_cut} of {len(tensors)} tensors are not here")
        return Description(
            path=checkpoint.path,
            kind=checkpoint.kind,
            file_bytes=checkpoint.file_bytes,
            metadata=checkpoint.metadata,
            config=config,
            tensors=tuple(tensors),
            notes=tuple(n for n in notes if n),
        )
    finally:
        checkpoint.close()


def damaged_parts(path: Path) -> list[str]:
    """Parts of a packed file whose bytes don't have their hash; empty for other files."""
    checkpoint = open_checkpoint(path, header_only=True)
    try:
        return checkpoint.damaged() if isinstance(checkpoint, PackedCheckpoint) else []
    finally:
        checkpoint.close()


def role_of(canonical: str | None, is_companion: bool = False) -> Role:
    """The group of the byte plan of a tensor, by what it is used as; None: not at all."""
    if canonical is None:
        return "layers" if is_companion else "not used"
    if canonical == "token_embd":
        return "token table"
    if canonical == "per_layer_token_embd":
        return "per-layer table"
    return "head" if canonical == "output" else "layers"
