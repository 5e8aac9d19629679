"""Reading bound tensors: views where nothing changes, exact transforms where something does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from culet.errors import ModelFileError, UnsupportedModelError
from culet.formats.binding import TensorSource, load_source
from culet.formats.checkpoint import Checkpoint
from culet.formats.gguf_writer import float_tensor, write_gguf
from culet.formats.opening import open_checkpoint
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME


def gguf_of(folder: Path, *tensors: QTensor) -> Checkpoint:
    write_gguf(folder / "x.gguf", {"general.architecture": "gemma4"}, list(tensors))
    return open_checkpoint(folder / "x.gguf")


def nvfp4(name: str, *shape: int) -> QTensor:
    qtype = BY_NAME["NVFP4"]
    rng = np.random.default_rng(0)
    rows = int(np.prod(shape[:-1]))
    data = rng.integers(0, 256, (rows, qtype.row_bytes(shape[-1])), dtype=np.uint8)
    return QTensor(name, qtype, shape, data)


def test_an_unchanged_tensor_is_a_view_of_the_file(tmp_path: Path) -> None:
    checkpoint = gguf_of(tmp_path, float_tensor("w", np.ones((2, 3), np.float32)))
    loaded = load_source(checkpoint, TensorSource("attn_q", "w"))
    assert np.shares_memory(loaded.data, checkpoint.tensor("w").data)
    assert loaded.scale is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plus_one_is_exact_in_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(33).to(dtype)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3_text"}))
    save_file({"norm.weight": weight}, tmp_path / "model.safetensors")
    source = TensorSource("output_norm", "norm.weight", transform="plus_one")
    loaded = load_source(open_checkpoint(tmp_path), source)
    assert (loaded.qtype.name, loaded.shape, loaded.data.shape) == ("F32", (33,), (1, 132))
    expected = (1.0 + weight.float()).numpy()
    np.testing.assert_array_equal(loaded.data.view(np.float32).ravel(), expected)


def test_plus_one_of_a_quantised_tensor_is_refused(tmp_path: Path) -> None:
    checkpoint = gguf_of(tmp_path, nvfp4("w", 1, 64))
    with pytest.raises(UnsupportedModelError, match="tensor w is NVFP4, must be F32, F16 or BF16"):
        load_source(checkpoint, TensorSource("output_norm", "w", transform="plus_one"))


def test_rows_of_a_fused_tensor(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(8, 3)
    checkpoint = gguf_of(tmp_path, float_tensor("qkv", values))
    loaded = load_source(checkpoint, TensorSource("layers.0.attn_k", "qkv", rows=(4, 6)))
    assert loaded.shape == (2, 3)
    np.testing.assert_array_equal(loaded.data.view(np.float32), values[4:6])
    expected = r"tensor qkv has shape \[8, 3\], but layers.0.attn_v is its rows 6 to 9"
    with pytest.raises(ModelFileError, match=expected):
        load_source(checkpoint, TensorSource("layers.0.attn_v", "qkv", rows=(6, 9)))


def test_nvfp4_scales(tmp_path: Path) -> None:
    checkpoint = gguf_of(
        tmp_path,
        nvfp4("w", 2, 64),
        float_tensor("one", np.array([0.5], np.float32)),
        nvfp4("experts", 3, 2, 64),
        float_tensor("three", np.array([1, 2, 3], np.float32)),
        float_tensor("two", np.array([1, 2], np.float32)),
        float_tensor("plain", np.ones((2, 64), np.float32)),
    )

    def scale(name: str, scale_name: str) -> list[float]:
        loaded = load_source(checkpoint, TensorSource("c", name, scale_name=scale_name))
        assert loaded.scale is not None
        return loaded.scale.tolist()

    assert scale("w", "one") == [0.5]
    assert scale("experts", "three") == [1.0, 2.0, 3.0]
    assert scale("experts", "one") == [0.5]
    with pytest.raises(ModelFileError, match="tensor three has 3 values, w takes 1"):
        scale("w", "three")
    with pytest.raises(ModelFileError, match="tensor two has 2 values, experts takes 3"):
        scale("experts", "two")
    with pytest.raises(UnsupportedModelError, match="plain, which is F32; only NVFP4"):
        scale("plain", "one")
