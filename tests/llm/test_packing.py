"""Packed files: nothing is lost, answers are the same, and damage is told."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import culet
from culet._native import isa_levels
from culet.cli.main import main
from culet.errors import ModelFileError, UnsupportedModelError, UsageError
from culet.formats.gguf_writer import write_gguf, write_split_gguf
from culet.formats.opening import open_checkpoint
from culet.formats.packed import MAGIC, PRELUDE, PackedCheckpoint, open_packed
from culet.formats.packing import PackResult, write_packed
from culet.llm.packing import pack_model, roles_of, unpack_model
from culet.quant.encode import encode
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME

PROMPT = "the fox and a dog"


@pytest.fixture(scope="session")
def packed_path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "model.culet"
    result = pack_model(model_path, out, 2)
    assert result.is_whole_file_hashed and result.file_bytes == out.stat().st_size
    return out


def logits(path: Path, **options: Any) -> np.ndarray:
    with culet.load(path, context_length=64, max_seqs=1, threads=2, **options) as llm:
        return llm.logits(llm.tokenizer.encode(PROMPT))


# ---- nothing is lost -----------------------------------------------------------------------------


def test_unpacking_gives_the_source_back(
    model_path: Path, packed_path: Path, tmp_path: Path
) -> None:
    unpack_model(packed_path, tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == model_path.read_bytes()


def rewritten(source: Path, out: Path, types: dict[str, str], **options: Any) -> Path:
    """The model with some tensors quantised, by the end of their names."""
    checkpoint = open_checkpoint(source)
    tensors = []
    for name in checkpoint.tensor_names():
        tensor = checkpoint.tensor(name)
        wanted = next((t for end, t in types.items() if name.endswith(end)), None)
        if wanted is not None and tensor.row_values % BY_NAME[wanted].block_values == 0:
            data = encode(tensor.data.view(np.float32), BY_NAME[wanted])
            tensor = QTensor(
                name, BY_NAME[wanted], tensor.shape, data.reshape(len(tensor.data), -1)
            )
        tensors.append(tensor)
    if "num_shards" in options:
        return write_split_gguf(out, "m", checkpoint.metadata, tensors, **options)[0]
    write_gguf(out, checkpoint.metadata, tensors, **options)
    return out


def test_a_split_model_and_one_with_another_alignment(model_path: Path, tmp_path: Path) -> None:
    types = {"ffn_down.weight": "Q4_0", "attn_q.weight": "Q8_0", "token_embd.weight": "F16"}
    shard = rewritten(model_path, tmp_path, types, num_shards=3)
    assert not pack_model(shard, tmp_path / "split.culet").is_whole_file_hashed
    whole = rewritten(model_path, tmp_path / "whole.gguf", types, alignment=64)
    assert pack_model(whole, tmp_path / "whole.culet").is_whole_file_hashed
    unpack_model(tmp_path / "split.culet", tmp_path / "split.gguf")
    unpack_model(tmp_path / "whole.culet", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == whole.read_bytes()
    split, before = open_checkpoint(tmp_path / "split.gguf"), open_checkpoint(shard)
    assert split.tensor_names() == before.tensor_names()
    for name in before.tensor_names():
        np.testing.assert_array_equal(split.tensor(name).data, before.tensor(name).data)
    assert set(split.metadata) == {k for k in before.metadata if not k.startswith("split.")}
    expected = logits(whole)
    for path in (shard, tmp_path / "split.culet", tmp_path / "whole.culet"):
        np.testing.assert_array_equal(logits(path), expected)


def test_bytes_that_belong_to_nothing_are_said_to_be_lost(model_path: Path, tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(model_path.read_bytes() + b"something else" * 3)
    result = pack_model(source, tmp_path / "m.culet")
    assert not result.is_whole_file_hashed
    unpack_model(tmp_path / "m.culet", tmp_path / "back.gguf")
    back = (tmp_path / "back.gguf").read_bytes()
    assert back[: model_path.stat().st_size] == model_path.read_bytes()
    assert len(back) == source.stat().st_size and not any(back[-42:])


def test_what_serving_leaves_alone_is_kept_and_never_mapped(
    model_path: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(model_path)
    tensors = [checkpoint.tensor(name) for name in checkpoint.tensor_names()]
    layers = int(checkpoint.metadata["gemma4.block_count"])
    tower = np.arange(48, dtype=np.float32).reshape(4, 12)
    extra = [
        QTensor("v.patch_embd.weight", BY_NAME["F32"], (4, 12), tower.view(np.uint8)),
        QTensor(f"blk.{layers - 1}.attn_k.weight", BY_NAME["F32"], (4, 12), tower.view(np.uint8)),
    ]
    source = tmp_path / "with.gguf"
    write_gguf(source, checkpoint.metadata, [*tensors, *extra])
    roles = roles_of(open_checkpoint(source))
    result = pack_model(source, tmp_path / "m.culet")
    raw = {name for name, role in roles.items() if role == "raw"}
    assert {t.name for t in extra} <= raw
    assert result.raw_bytes == sum(open_checkpoint(source).info(n).num_bytes for n in raw)
    packed = open_packed(tmp_path / "m.culet")
    for name in raw:
        entry = packed.entries[name]
        assert entry.served is None and entry.raw is not None
        assert entry.raw.offset >= packed.served_bytes
    unpack_model(tmp_path / "m.culet", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == source.read_bytes()
    np.testing.assert_array_equal(logits(tmp_path / "m.culet"), logits(model_path))


# ---- odd requests --------------------------------------------------------------------------------


def test_what_is_read_is_never_written(model_path: Path, packed_path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.culet"
    link.symlink_to(model_path)
    with pytest.raises(UsageError, match="is the file that is read"):
        pack_model(model_path, link)
    whole = packed_path.read_bytes()
    with pytest.raises(UsageError, match="what is unpacked is a GGUF file"):
        unpack_model(packed_path, packed_path)
    assert packed_path.read_bytes() == whole


def test_a_full_disk_is_told_before_work_begins(
    model_path: Path, packed_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    sentence = r"can't be written \(\d+ MiB are needed, 0 MiB are free\)"
    with pytest.raises(culet.CuletError, match=sentence):
        pack_model(model_path, tmp_path / "m.culet")
    with pytest.raises(culet.CuletError, match=sentence):
        unpack_model(packed_path, tmp_path / "m.gguf")
    assert not list(tmp_path.iterdir())


def test_a_source_that_changes_meanwhile_is_not_packed(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "model.gguf"
    shutil.copyfile(model_path, source)

    def write_and_touch(*args: Any) -> PackResult:
        os.utime(source, (1, 1))
        return write_packed(*args)

    packed = tmp_path / "m.culet"
    packed.write_bytes(b"an older one")
    monkeypatch.setattr("culet.llm.packing.write_packed", write_and_touch)
    with pytest.raises(ModelFileError, match="has been changed while it was packed"):
        pack_model(source, packed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.culet", "model.gguf"]
    assert packed.read_bytes() == b"an older one"


# ---- answers are the same ------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_logits_are_the_same_in_every_load_mode(
    model_path: Path, packed_path: Path, backend: str
) -> None:
    expected = logits(model_path, backend=backend)
    for mode in ("mmap", "none", "mlock"):
        for place in ("auto", "host", "disk"):
            for path in (model_path, packed_path):
                found = logits(path, backend=backend, load_mode=mode, embed_weights=place)
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("level", isa_levels())
def test_one_file_serves_every_instruction_set(
    model_path: Path, packed_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CULET_ISA", level)
    np.testing.assert_array_equal(logits(packed_path), logits(model_path))


# ---- damage --------------------------------------------------------------------------------------


def with_index(packed: Path, out: Path, change: Any) -> Path:
    """The file with another index, its hash put right."""
    raw = packed.read_bytes()
    magic, version, zero, offset, _, _ = PRELUDE.unpack(raw[: PRELUDE.size])
    index = json.loads(raw[offset:])
    change(index)
    new = json.dumps(index).encode()
    prelude = PRELUDE.pack(magic, version, zero, offset, len(new), hashlib.sha256(new).digest())
    out.write_bytes(prelude + raw[PRELUDE.size : offset] + new)
    return out


def test_a_flipped_byte_is_found_by_verify(
    packed_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = open_packed(packed_path)
    assert packed.damaged() == []
    name, span = next((n, s) for n, s in packed.spans() if n == "blk.0.ffn_up.weight")
    raw = bytearray(packed_path.read_bytes())
    raw[span.offset + 5] ^= 1
    bad = tmp_path / "bad.culet"
    bad.write_bytes(raw)
    assert open_packed(bad).damaged() == [name]
    with pytest.raises(ModelFileError, match=f"tensor {name} is damaged"):
        unpack_model(bad, tmp_path / "bad.gguf")
    assert not (tmp_path / "bad.gguf").exists()
    assert main(["check", "--verify", str(packed_path)]) == 0
    assert main(["check", "--verify", str(bad)]) == 3
    assert f"damaged: {name}" in capsys.readouterr().out


def test_a_cut_file_is_refused_at_every_length(packed_path: Path, tmp_path: Path) -> None:
    raw = packed_path.read_bytes()
    bad = tmp_path / "bad.culet"
    for length in [0, 7, 63, 64, 1000, len(raw) // 2, len(raw) - 1]:
        bad.write_bytes(raw[:length])
        with pytest.raises(ModelFileError):
            open_checkpoint(bad)
    bad.write_bytes(raw + b"\0")
    with pytest.raises(ModelFileError, match="should end the file"):
        open_checkpoint(bad)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda i: i.pop("served_bytes"), ModelFileError, "served_bytes of the index is None"),
        (lambda i: i.update(served_bytes=1 << 50), ModelFileError, "served_bytes"),
        (lambda i: i["header"].update(bytes=1 << 40), ModelFileError, "bytes of the header"),
        (lambda i: i["header"].update(offset=-1), ModelFileError, "offset of the header"),
        (lambda i: i["tensors"].popitem(), ModelFileError, "aren't those of the header"),
        (lambda i: i["source"].update(bytes=1 << 50), ModelFileError, "bytes of the source"),
        (lambda i: i["source"].update(sha256="x"), ModelFileError, "sha256 of the source"),
        (
            lambda i: i["tensors"]["token_embd.weight"].update(layout="q9_z"),
            UnsupportedModelError,
            "layout 'q9_z', which isn't known",
        ),
        (
            lambda i: i["tensors"]["token_embd.weight"].update(version=2),
            UnsupportedModelError,
            "of version 2",
        ),
        (
            lambda i: i["tensors"]["token_embd.weight"]["served"].update(offset=1 << 20),
            ModelFileError,
            "token_embd.weight",
        ),
        (
            lambda i: i["tensors"].update(
                {"token_embd.weight": i["tensors"]["output_norm.weight"]}
            ),
            ModelFileError,
            "token_embd.weight has",
        ),
        (
            lambda i: i["tensors"]["blk.0.attn_norm.weight"].update(
                served=i["tensors"]["blk.1.attn_norm.weight"]["served"]
            ),
            ModelFileError,
            "overlap",
        ),
    ],
)
def test_an_index_that_lies_is_refused(
    packed_path: Path, tmp_path: Path, change: Any, error: type[Exception], message: str
) -> None:
    bad = with_index(packed_path, tmp_path / "bad.culet", change)
    with pytest.raises(error, match=message):
        open_checkpoint(bad)


def test_another_version_is_refused(packed_path: Path, tmp_path: Path) -> None:
    raw = bytearray(packed_path.read_bytes())
    raw[len(MAGIC)] = 2
    bad = tmp_path / "bad.culet"
    bad.write_bytes(raw)
    with pytest.raises(UnsupportedModelError, match="version 2, version 1 is read"):
        open_checkpoint(bad)


def test_packing_twice_and_unpacking_a_gguf(
    model_path: Path, packed_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is packed already"):
        pack_model(packed_path, tmp_path / "x.culet")
    with pytest.raises(UsageError, match="ends in .culet"):
        pack_model(model_path, tmp_path / "x.gguf")
    with pytest.raises(UsageError, match="is no packed file"):
        unpack_model(model_path, tmp_path / "x.gguf")


def test_a_killed_pack_leaves_nothing_that_looks_whole(model_path: Path, tmp_path: Path) -> None:
    """A model large enough that the kill falls within the writing."""
    checkpoint = open_checkpoint(model_path)
    tensors = [checkpoint.tensor(name) for name in checkpoint.tensor_names()]
    rows = np.zeros((4 << 20, 16), np.float32)
    big = QTensor("v.big.weight", BY_NAME["F32"], rows.shape, rows.view(np.uint8))
    source = tmp_path / "big.gguf"
    write_gguf(source, checkpoint.metadata, [*tensors, big])
    out = tmp_path / "big.culet"
    command = [sys.executable, "-m", "culet", "pack", str(source), "-o", str(out)]
    process = subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".big.culet.*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "finished before it was killed"
    assert not out.exists()
    for rest in tmp_path.glob(".big.culet.*"):  # even under the right name it isn't accepted
        shutil.copy(rest, tmp_path / "rest.culet")
        with pytest.raises(ModelFileError):
            open_checkpoint(tmp_path / "rest.culet")
    assert isinstance(pack_and_open(source, out), PackedCheckpoint)


def pack_and_open(source: Path, out: Path) -> Any:
    pack_model(source, out, 2)
    return open_checkpoint(out)
