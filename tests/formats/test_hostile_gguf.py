"""Damaged and hostile GGUF files: one sentence each, at once, without memory or crashes."""

from __future__ import annotations

import random
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hostile.gguf_files import MAKERS, Maker
from hostile.raw import STRING, U32, gguf, key, string, tensor

from culet.errors import ModelFileError, UnsupportedModelError
from culet.formats.gguf_writer import float_tensor, write_gguf
from culet.formats.opening import open_checkpoint

# Interpreter, exception and path objects; what a check must not depend on is the file's claims.
ALLOWED_BYTES = 300_000


def check_refused(path: Path, expected: str = "") -> None:
    """Opening fails with one sentence that names the file, within the file's own size of memory."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(ModelFileError, match=expected) as raised:
            open_checkpoint(path)
        seconds = time.perf_counter() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(raised.value)
    assert message.startswith(str(path)) and message.isprintable() and len(message) <= 1003
    assert peak < ALLOWED_BYTES + path.stat().st_size
    assert seconds < 1.0
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.name)
def test_refused(maker: Maker, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(maker.make())
    check_refused(path, maker.expected)


def test_the_same_file_without_the_fault_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([key("k", STRING, string("v"))], [tensor("a"), tensor("b", offset=32)]))
    checkpoint = open_checkpoint(path)
    assert checkpoint.tensor_names() == ["a", "b"]
    assert checkpoint.metadata["k"] == "v"


def sample_model(path: Path) -> bytes:
    """A small file with all kinds of content, returned as bytes."""
    rng = np.random.default_rng(0)
    tensors = [
        float_tensor(f"blk.{i}.w.weight", rng.standard_normal((8, 16), dtype=np.float32))
        for i in range(6)
    ]
    metadata = {
        "general.architecture": "gemma4",
        "tokenizer.ggml.tokens": [f"token{i}" for i in range(50)],
        "gemma4.attention.head_count_kv": [1, 2, 3],
        "gemma4.attention.sliding_window_pattern": [True, False],
        "gemma4.rope.freq_base": 1e6,
    }
    write_gguf(path, metadata, tensors)
    return path.read_bytes()


def test_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    whole = sample_model(path)
    rng = random.Random(0)
    for length in [
        0,
        3,
        4,
        23,
        24,
        len(whole) - 1,
        *(rng.randrange(len(whole)) for _ in range(200)),
    ]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError) as raised:
            open_checkpoint(path)
        assert str(raised.value).startswith(str(path))


def test_cut_weights_are_fine_for_a_look_at_the_header(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    whole = sample_model(path)
    path.write_bytes(whole[: whole.index(b"blk.5") + 100])
    checkpoint = open_checkpoint(path, header_only=True)
    assert checkpoint.info("blk.5.w.weight").shape == (8, 16)
    assert not checkpoint.has_data("blk.5.w.weight")


def test_flipped_bytes_open_or_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    whole = sample_model(path)
    header_bytes = whole.index(b"blk.5") + 60
    rng = random.Random(1)
    num_refused = 0
    for _ in range(1500):
        bad = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(header_bytes)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        path.write_bytes(bad)
        try:
            checkpoint = open_checkpoint(path)
        except ModelFileError as error:
            assert str(error).startswith(str(path))
            num_refused += 1
            continue
        for name in checkpoint.tensor_names():
            tensor = checkpoint.tensor(name)
            assert tensor.data.shape == (tensor.num_rows, tensor.qtype.row_bytes(tensor.row_values))
        for value in checkpoint.metadata.values():
            if not isinstance(value, str | int | float):
                list(value)
    assert num_refused > 500


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"general.architecture": "clip", "general.type": "mmproj"}, r"projector \(mmproj\)"),
        ({"general.architecture": "clip", "clip.projector_type": "invented"}, "projector"),
        ({"general.architecture": "gemma4-assistant"}, r"draft model.*isn't used"),
        ({"general.architecture": "gemma4_mtp"}, "draft model"),
        ({"general.architecture": "gemma4", "general.type": "adapter"}, r"LoRA adapter.*merge it"),
        ({"general.type": "imatrix"}, "importance matrix"),
        ({"general.architecture": "gemma-embedding"}, "embedding model"),
        ({"general.architecture": "nomic-bert"}, "embedding model"),
        ({"general.architecture": "llama"}, "general.architecture is 'llama', only Gemma 4"),
        ({"general.architecture": "gemma3n"}, "is 'gemma3n', only Gemma 4 and Gemma 3"),
        ({"general.architecture": "gemma4", "general.type": "merge"}, "general.type is 'merge'"),
    ],
)
def test_files_that_are_no_text_model_say_what_they_are(
    metadata: dict[str, str], expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, [])
    with pytest.raises(UnsupportedModelError, match=expected):
        open_checkpoint(path)


def test_architecture_must_be_text(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    whole = gguf([], [])
    old = key("general.architecture", STRING, string("gemma4"))
    new = key("general.architecture", U32, b"\1\0\0\0")
    path.write_bytes(whole.replace(old, new))
    check_refused(path, "general.architecture is 1, must be a string")
