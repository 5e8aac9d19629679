"""Handing tensors to a model: each once, of the right shape, its bytes given back in time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from culet.errors import ModelFileError
from culet.formats.gguf import GgufCheckpoint
from culet.formats.gguf_writer import float_tensor
from culet.models.weights import WeightLoader
from culet.ops.reference import ReferenceOps
from culet.quant.tensor import QTensor
from support.harness import Loaded
from support.tiny_models import CONFIGS, gguf_arrays, make_model, save_gguf


@dataclass
class CopiedWeight:
    """A weight that no longer needs its source."""

    source: QTensor
    reads_source: bool = False
    num_bytes: int = 7


class CopyingOps(ReferenceOps):
    """Keeps tables in the file, and nothing else."""

    def weight(self, source: QTensor) -> Any:
        return CopiedWeight(source)


class Source:
    """Tensors by canonical name, and which of them have been given back."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.arrays = arrays
        self.released: list[str] = []
        self.loader = WeightLoader(
            CopyingOps(), arrays, self.read, self.released.append, "model.gguf"
        )

    def read(self, name: str) -> QTensor:
        return float_tensor(f"file.{name}", self.arrays[name].astype(np.float32))


def test_a_tensor_is_taken_once_and_given_back() -> None:
    source = Source(w=np.zeros((3, 4)), v=np.arange(5), t=np.zeros((6, 2)))
    source.loader.linear("w", 3, 4)
    np.testing.assert_array_equal(source.loader.vector("v", 5), np.arange(5))
    assert source.released == ["w", "v"]
    source.loader.table("t", 6, 2, "disk")
    assert source.released == ["w", "v"], "a table goes on reading the file"
    source.loader.finish()
    with pytest.raises(ModelFileError, match=r"model\.gguf: the model needs w"):
        source.loader.linear("w", 3, 4)
    assert source.loader.held_bytes() == {"w": 7, "v": 20, "t": 0}


def test_wrong_shapes_and_leftovers_are_named() -> None:
    source = Source(w=np.zeros((3, 4)), v=np.zeros(5))
    with pytest.raises(ModelFileError, match=r"file\.w has shape \[3, 4\]; .* \[4, 3\]"):
        source.loader.linear("w", 4, 3)
    with pytest.raises(ModelFileError, match="1 tensors have no use in this model: v"):
        source.loader.finish()


def test_parts_and_experts_are_views() -> None:
    values = np.arange(24).reshape(6, 4)
    source = Source(w=values, e=values.reshape(3, 2, 4))
    empty, first, rest = source.loader.linear_parts("w", [0, 2, 4], 4)
    assert empty is None
    assert isinstance(first, CopiedWeight) and isinstance(rest, CopiedWeight)
    assert (first.source.shape, rest.source.shape) == ((2, 4), (4, 4))
    assert rest.source.data.base is not None
    experts = source.loader.experts("e", 3, 2, 4)
    assert [weight.source.shape for weight in experts] == [(2, 4)] * 3
    assert source.released == ["w", "e"]


def test_a_fused_tensor_is_given_back_after_its_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(CONFIGS[0])
    arrays = gguf_arrays(model, "gemma4")
    parts = [f"blk.0.attn_{part}.weight" for part in "qkv"]
    fused = {"blk.0.attn_qkv.weight": np.concatenate([arrays[name] for name in parts])}
    path = save_gguf(model, tmp_path / "fused.gguf", extra=fused, without=parts)
    events: list[str] = []

    def spy(name: str) -> None:
        original = getattr(GgufCheckpoint, name)

        def called(self: GgufCheckpoint, tensor: str) -> Any:
            if "attn_qkv" in tensor:
                events.append(name)
            return original(self, tensor)

        monkeypatch.setattr(GgufCheckpoint, name, called)

    spy("tensor")
    spy("release")
    Loaded(path, CopyingOps())
    assert events == ["tensor"] * 3 + ["release"]
