"""What lies at a path: which format, which model of several, what else it may be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from culet.errors import ModelFileError, UnsupportedModelError
from culet.formats.gguf_writer import write_gguf
from culet.formats.opening import open_checkpoint

BASE = {"general.architecture": "gemma4"}


def test_a_blob_without_suffix_is_told_by_its_magic(tmp_path: Path) -> None:
    path = tmp_path / "sha256-0123"
    write_gguf(path, BASE, [])
    assert open_checkpoint(path).kind == "gguf"
    assert open_checkpoint(str(path)).architecture == "gemma4"


def test_a_folder_with_one_gguf_and_its_projector(tmp_path: Path) -> None:
    write_gguf(tmp_path / "mmproj-F16.gguf", {"general.architecture": "clip"}, [])
    write_gguf(tmp_path / "model.gguf", BASE, [])
    assert open_checkpoint(tmp_path).path == tmp_path / "model.gguf"


def test_a_folder_with_two_models_asks_for_one(tmp_path: Path) -> None:
    for name in ("a-Q4_0.gguf", "a-Q8_0.gguf"):
        write_gguf(tmp_path / name, BASE, [])
    with pytest.raises(ModelFileError, match=r"several models \(a-Q4_0.gguf, a-Q8_0.gguf\)"):
        open_checkpoint(tmp_path)


def test_safetensors_come_before_gguf(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", BASE, [])
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4"}))
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).kind == "safetensors"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "the folder is empty"),
        ({"README.md": b"x"}, "holds no model"),
        ({"config.json": b'{"model_type": "gemma4"}'}, "no .safetensors files beside config.json"),
        ({"model.safetensors": b"x" * 10}, "there is no config.json"),
        ({"config.json": b"{"}, "config.json is not JSON"),
        ({"config.json": b"[]"}, "config.json is a JSON list, must be an object"),
        ({"config.json": b'{"model_type": "a", "model_type": "b"}'}, "key 'model_type' twice"),
        ({"config.json": b"[" * 100_000}, "config.json is not JSON"),
        ({"config.json": b"\xff\xfe"}, "config.json is not JSON"),
        ({"config.json": b"{}"}, "model_type is missing"),
        ({"config.json": b'{"model_type": 4}'}, "model_type is 4, must be a string"),
        ({"mmproj.gguf": b"GGUF"}, "holds no model"),
    ],
)
def test_folders_without_a_model(tmp_path: Path, files: dict[str, bytes], expected: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelFileError, match=expected) as raised:
        open_checkpoint(tmp_path)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', only Gemma 4 and Gemma 3"),
        ({"model_type": "gemma3n"}, "model_type is 'gemma3n'"),
        ({"model_type": "gemma4_assistant"}, "draft model"),
        ({"model_type": "gemma4_unified_assistant"}, "draft model"),
        ({"model_type": "bert"}, "embedding model"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "embedding model"),
        ({"model_type": "siglip_vision_model"}, "vision tower"),
    ],
)
def test_folders_of_other_models(tmp_path: Path, config: dict[str, object], expected: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=expected):
        open_checkpoint(tmp_path)


def test_an_adapter_folder(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "adapter_model.safetensors")
    for path in (tmp_path, tmp_path / "adapter_model.safetensors"):
        with pytest.raises(UnsupportedModelError, match="LoRA adapter"):
            open_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("pytorch_model.bin", b"PK\x03\x04....", "zip archive"),
        ("consolidated.pth", b"\x80\x02......", "pickle"),
        ("model.bin", b"tjgg....", "GGML file from before GGUF"),
        ("model.bin", b"<!DOCTYPE html>", "HTML page"),
        ("model.bin", b"abcdefgh", r"begins with b'abcd', neither a GGUF nor a \.safetensors"),
        ("model.bin", b"", "the file is empty"),
        ("model.gguf", b"PK\x03\x04....", "zip archive"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("pointer", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_files_in_other_formats(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelFileError, match=expected):
        open_checkpoint(tmp_path / name)
