"""Safetensors folders against the `safetensors` package, in every layout that people have."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile.safetensors_files import MAKERS, Maker
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from culet import system
from culet.errors import ModelFileError, UnsupportedModelError, UsageError
from culet.formats.opening import open_checkpoint
from culet.formats.safetensors import text_config

CONFIG = {"model_type": "gemma4_text", "hidden_size": 8}


def write_config(folder: Path, config: dict[str, Any] = CONFIG) -> None:
    (folder / "config.json").write_text(json.dumps(config))


def sample_tensors(count: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"t{i}.weight": rng.standard_normal((3, 4), dtype=np.float32) for i in range(count)}


def write_shards(folder: Path, tensors: dict[str, np.ndarray], *, index: bool) -> list[Path]:
    names = [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]
    weight_map = {tensor: names[i % 3] for i, tensor in enumerate(tensors)}
    for name in names:
        save_file({t: v for t, v in tensors.items() if weight_map[t] == name}, folder / name)
    if index:
        content = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    return [folder / name for name in names]


def check_content(path: Path, tensors: dict[str, np.ndarray]) -> None:
    checkpoint = open_checkpoint(path)
    assert set(checkpoint.tensor_names()) == set(tensors)
    for name, expected in tensors.items():
        found = checkpoint.tensor(name)
        assert (found.qtype.name, found.shape) == ("F32", expected.shape)
        assert not found.data.flags.writeable
        np.testing.assert_array_equal(found.data.view(np.float32).reshape(found.shape), expected)


def test_every_dtype_of_weights_as_it_lies(tmp_path: Path) -> None:
    write_config(tmp_path)
    torch.manual_seed(0)
    dtypes = {
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F64": torch.float64,
        "I16": torch.int16,
        "I32": torch.int32,
        "I64": torch.int64,
    }
    tensors = {name: (100 * torch.randn(3, 5)).to(dtype) for name, dtype in dtypes.items()}
    tensors["vector"] = torch.randn(7)
    tensors["scalar"] = torch.tensor(2.5)
    tensors["cube"] = torch.randn(2, 3, 4)
    save_torch_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    for name, expected in tensors.items():
        found = checkpoint.tensor(name)
        assert found.qtype.name == (name if name in dtypes else "F32")
        assert found.shape == (tuple(expected.shape) or (1,))
        assert found.data.shape == (found.num_rows, found.qtype.row_bytes(found.row_values))
        raw = expected.contiguous().reshape(-1).view(torch.uint8).numpy()
        np.testing.assert_array_equal(found.data.ravel(), raw)
        assert checkpoint.info(name).num_bytes == raw.size


def test_one_file(tmp_path: Path) -> None:
    write_config(tmp_path)
    tensors = sample_tensors()
    save_file(tensors, tmp_path / "model.safetensors")
    check_content(tmp_path, tensors)
    check_content(tmp_path / "model.safetensors", tensors)


def test_one_file_of_another_name(tmp_path: Path) -> None:
    write_config(tmp_path)
    tensors = sample_tensors()
    save_file(tensors, tmp_path / "gemma.safetensors")
    check_content(tmp_path, tensors)


@pytest.mark.parametrize("index", [True, False])
def test_shards_with_and_without_index(tmp_path: Path, index: bool) -> None:
    write_config(tmp_path)
    tensors = sample_tensors()
    paths = write_shards(tmp_path, tensors, index=index)
    check_content(tmp_path, tensors)
    check_content(paths[1], tensors)


def test_several_models_in_a_folder(tmp_path: Path) -> None:
    write_config(tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        save_file(sample_tensors(), tmp_path / name)
    with pytest.raises(ModelFileError, match=r"several models \(a.safetensors, b.safetensors\)"):
        open_checkpoint(tmp_path)
    check_content(tmp_path / "b.safetensors", sample_tensors())


@pytest.mark.parametrize("index", [True, False])
def test_missing_shards_are_named(tmp_path: Path, index: bool) -> None:
    write_config(tmp_path)
    paths = write_shards(tmp_path, sample_tensors(), index=index)
    paths[1].unlink()
    paths[2].rename(tmp_path / "renamed.bin")
    expected = (
        "of 3 weight files 2 are missing: model-00002-of-00003.safetensors, "
        "model-00003-of-00003.safetensors"
    )
    with pytest.raises(ModelFileError, match=expected):
        open_checkpoint(tmp_path)


def test_a_tensor_outside_its_named_shard_is_named(tmp_path: Path) -> None:
    write_config(tmp_path)
    write_shards(tmp_path, sample_tensors(), index=True)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["t0.weight"] = "model-00002-of-00003.safetensors"
    index["weight_map"]["ghost"] = "model-00001-of-00003.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="aren't in the files that it names: t0.weight, ghost"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", 3, ".."]
)
def test_an_index_cannot_point_out_of_its_folder(tmp_path: Path, name: Any) -> None:
    write_config(tmp_path)
    index = {"weight_map": {"t0.weight": name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="must be a .safetensors file of the same folder"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_an_index_without_a_map(tmp_path: Path, index: str) -> None:
    write_config(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelFileError, match="weight_map is missing or empty"):
        open_checkpoint(tmp_path)


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    write_config(tmp_path)
    write_shards(tmp_path, sample_tensors(), index=False)
    save_file(sample_tensors(1), tmp_path / "model-00002-of-00003.safetensors")
    with pytest.raises(ModelFileError, match=r"t0.weight is in model-00001-of-00003.* too"):
        open_checkpoint(tmp_path)


# -- schemes that would be read wrongly ------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ({"quant_method": "fp8"}, "scheme fp8"),
        ({"quant_method": "awq", "bits": 4}, "scheme awq"),
        ({"quant_method": "gptq"}, "scheme gptq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "scheme bitsandbytes"),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            r"scheme compressed-tensors \(nvfp4-pack-quantized\)",
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, r"scheme modelopt \(NVFP4\)"),
        ({"quant_algo": "NVFP4"}, "scheme NVFP4"),
        ({}, "scheme of an unnamed kind"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_quantised_folders_are_refused_by_their_config(
    tmp_path: Path, scheme: dict[str, Any], expected: str, nested: bool
) -> None:
    part = {"quantization_config": scheme}
    extra = {"text_config": part} if nested else part
    write_config(tmp_path, {"model_type": "gemma4"} | extra)
    (tmp_path / "model.safetensors").write_bytes(b"never looked at")
    with pytest.raises(UnsupportedModelError, match=expected):
        open_checkpoint(tmp_path)


def test_a_null_scheme_is_none(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG | {"quantization_config": None})
    save_file(sample_tensors(), tmp_path / "model.safetensors")
    check_content(tmp_path, sample_tensors())


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (
            {
                "w.weight": np.zeros((4, 2), np.uint32),
                "w.scales": np.zeros((4, 1), np.float16),
                "w.biases": np.zeros((4, 1), np.float16),
            },
            "MLX-quantised",
        ),
        ({"w.weight": np.zeros((4, 2), np.int8)}, "int8 weights without a known scheme"),
        ({"w.SCB": np.zeros(4, np.float32)}, r"int8 weights without a known scheme \(tensor w.SCB"),
        ({"w.weight": np.zeros((4, 2), np.uint8)}, "U8 weights without a known scheme"),
    ],
)
def test_packed_weights_are_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], expected: str
) -> None:
    write_config(tmp_path)
    save_file(sample_tensors() | tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=expected):
        open_checkpoint(tmp_path)


def test_fp8_weights_are_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    tensors = {"w.weight": torch.zeros(4, 2).to(torch.float8_e4m3fn)}
    save_torch_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match="F8_E4M3 weights without a known scheme"):
        open_checkpoint(tmp_path)


def test_a_type_of_no_weights_is_refused_when_read(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_file(sample_tensors(1) | {"mask": np.zeros(4, np.bool_)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(UnsupportedModelError, match="tensor mask is BOOL"):
        checkpoint.tensor("mask")


# -- config.json ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [
        ("gemma4", "gemma4"),
        ("gemma4_text", "gemma4"),
        ("gemma4_unified", "gemma4"),
        ("gemma3", "gemma3"),
        ("gemma3_text", "gemma3"),
    ],
)
def test_architectures(tmp_path: Path, model_type: str, architecture: str) -> None:
    write_config(tmp_path, {"model_type": model_type, "text_config": {"hidden_size": 8}})
    save_file(sample_tensors(), tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.kind, checkpoint.architecture) == ("safetensors", architecture)
    assert checkpoint.metadata["hidden_size"] == 8


def test_the_text_part_of_a_multimodal_config() -> None:
    config = {
        "model_type": "gemma4",
        "eos_token_id": [1, 106],
        "tie_word_embeddings": True,
        "vision_config": {"hidden_size": 768},
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size": 8,
            "tie_word_embeddings": False,
        },
    }
    assert text_config(config) == {
        "model_type": "gemma4_text",
        "eos_token_id": [1, 106],
        "tie_word_embeddings": True,
        "hidden_size": 8,
    }
    assert text_config(CONFIG) == CONFIG


# -- damaged files --------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.name)
def test_refused(maker: Maker, tmp_path: Path) -> None:
    write_config(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(maker.make())
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(ModelFileError, match=maker.expected) as raised:
            open_checkpoint(tmp_path)
        seconds = time.perf_counter() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(raised.value)
    assert message.startswith(str(path)) and "\n" not in message and len(message) < 600
    assert seconds < 1.0
    # The header is read whole, so it is held as bytes and as text at the same time.
    assert peak < 300_000 + 4 * path.stat().st_size


def test_cut_anywhere(tmp_path: Path) -> None:
    write_config(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(sample_tensors(2), path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            open_checkpoint(tmp_path)


def test_cut_weights_are_fine_for_a_look_at_the_header(tmp_path: Path) -> None:
    write_config(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(sample_tensors(2), path)
    path.write_bytes(path.read_bytes()[:-50])
    checkpoint = open_checkpoint(tmp_path, header_only=True)
    assert checkpoint.info("t1.weight").shape == (3, 4)
    assert not checkpoint.has_data("t1.weight")
    with pytest.raises(UsageError, match="t1.weight can't be read"):
        checkpoint.tensor("t1.weight")


@pytest.mark.skipif(system.resident_bytes() is None, reason="needs /proc")
def test_release_gives_the_pages_back(tmp_path: Path) -> None:
    write_config(tmp_path)
    size = 32 << 20
    save_file({"big": np.zeros((size // 16384, 4096), np.float32)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    tensor = checkpoint.tensor("big")
    assert not tensor.data.any()
    touched = system.resident_bytes()
    checkpoint.release("big")
    released = system.resident_bytes()
    assert touched is not None and released is not None
    assert touched - released > size * 3 // 4
