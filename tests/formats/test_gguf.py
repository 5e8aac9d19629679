"""GGUF reader and writer against the `gguf` package and each other; split files; laziness."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from culet import system
from culet._native import StringTable
from culet.errors import CuletError, ModelFileError, UsageError
from culet.formats.gguf import open_gguf
from culet.formats.gguf_writer import Scalar, float_tensor, write_gguf, write_split_gguf
from culet.formats.opening import open_checkpoint
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME, QuantType

GGUF_TYPES = [t for t in BY_NAME.values() if t.name in gguf.GGMLQuantizationType.__members__]
BASE = {"general.architecture": "gemma4"}
SHARED = Path(os.environ.get("CULET_SHARED", Path(__file__).parents[3] / "shared"))
REAL_VOCABULARY = SHARED / "data" / "ggml-vocab-gemma-4.gguf"


def random_tensor(qtype: QuantType, rng: np.random.Generator, name: str | None = None) -> QTensor:
    shape = (3, 2, 2 * qtype.block_values)
    data = rng.integers(0, 256, (6, qtype.row_bytes(shape[-1])), dtype=np.uint8)
    return QTensor(name or qtype.name, qtype, shape, data)


def plain(value: Any) -> Any:
    """A metadata value as Python lists and numbers."""
    if isinstance(value, StringTable):
        return [s.decode() for s in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_we_read_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "gemma4")
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{name}")(name, 100)
    writer.add_float32("float32", 0.5)
    writer.add_float64("float64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("string", "grüße")
    writer.add_array("strings", ["a", "", "ü"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("bools", [True, False])
    tensors = [random_tensor(t, rng) for t in GGUF_TYPES]
    for t in tensors:
        raw = t.data.reshape(3, 2, -1)
        writer.add_tensor(t.name, raw, raw_dtype=gguf.GGMLQuantizationType[t.qtype.name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    checkpoint = open_gguf(path)
    metadata = {k: plain(v) for k, v in checkpoint.metadata.items()}
    assert all(metadata[n] == 100 for n in ("uint8", "int8", "uint16", "int64", "uint64", "int16"))
    assert (metadata["float32"], metadata["float64"], metadata["bool"]) == (0.5, 0.1, True)
    assert metadata["string"] == "grüße"
    assert metadata["strings"] == ["a", "", "ü"]
    assert metadata["ints"] == [1, -2, 3]
    assert metadata["floats"] == [0.5, 1.5]
    assert metadata["bools"] == [True, False]
    assert checkpoint.tensor_names() == [t.name for t in tensors]
    for expected in tensors:
        found = checkpoint.tensor(expected.name)
        assert (found.qtype, found.shape) == (expected.qtype, expected.shape)
        np.testing.assert_array_equal(found.data, expected.data)
        assert not found.data.flags.writeable
        assert checkpoint.info(expected.name).num_bytes == expected.num_bytes


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_the_gguf_package_reads_what_we_write(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "x.gguf"
    rng = np.random.default_rng(1)
    metadata: dict[str, Any] = BASE | {
        "s": "grüße",
        "b": False,
        "u32": 7,
        "i32": -7,
        "i64": 1 << 40,
        "u64": (1 << 64) - 1,
        "f": 0.25,
        "u8": Scalar("u8", 200),
        "f64": Scalar("f64", 0.1),
        "strings": ["a", "", "ü"],
        "ints": [1, -2],
        "floats": [0.5],
        "bools": [True, False],
        "u16s": np.array([1, 65535], dtype=np.uint16),
    }
    tensors = [random_tensor(t, rng) for t in GGUF_TYPES]
    write_gguf(path, metadata, tensors, alignment=alignment)

    reader = gguf.GGUFReader(path)
    for key, value in metadata.items():
        expected = value.value if isinstance(value, Scalar) else plain(value)
        assert reader.fields[key].contents() == expected, key
    types = {k: reader.fields[k].types[-1].name for k in metadata}
    assert types["i32"] == "INT32" and types["i64"] == "INT64" and types["u64"] == "UINT64"
    assert types["u8"] == "UINT8" and types["f64"] == "FLOAT64" and types["u16s"] == "UINT16"
    for ours, theirs in zip(tensors, reader.tensors, strict=True):
        assert (theirs.name, theirs.tensor_type.name) == (ours.name, ours.qtype.name)
        assert tuple(int(n) for n in theirs.shape) == ours.shape[::-1]
        assert theirs.data_offset % alignment == 0
        assert theirs.data.tobytes() == ours.data.tobytes()


VALUES = st.one_of(
    st.text(max_size=20),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(width=32, allow_nan=False),
    st.lists(st.text(max_size=5), min_size=1, max_size=5),
    st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=5),
    st.lists(st.booleans(), min_size=1, max_size=5),
)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.text(min_size=1, max_size=10), VALUES, max_size=8))
def test_metadata_round_trip(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    values = {f"x.{k}": v for k, v in values.items()}  # no general.alignment, no split.count
    path = tmp_path_factory.mktemp("round") / "x.gguf"
    write_gguf(path, BASE | values, [])
    found = {k: plain(v) for k, v in open_gguf(path).metadata.items()}
    assert found == BASE | values
    assert [type(v) for v in found.values()] == [type(v) for v in (BASE | values).values()]


def test_a_string_table_can_be_written_again(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", BASE | {"tokens": ["a", "bb", ""]}, [])
    first = open_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf", first.metadata, [])
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_unaligned_numbers_come_aligned(tmp_path: Path) -> None:
    for pad in range(8):
        metadata = BASE | {"k" * (pad + 1): "x", "n": np.arange(5, dtype=np.int64)}
        write_gguf(tmp_path / "x.gguf", metadata, [])
        values = open_gguf(tmp_path / "x.gguf").metadata["n"]
        assert values.flags.aligned and values.tolist() == [0, 1, 2, 3, 4]


def test_broken_utf8_in_a_value_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, BASE | {"general.name": "ab"}, [])
    path.write_bytes(path.read_bytes().replace(b"ab", b"a\xff"))
    assert open_gguf(path).metadata["general.name"] == "a\ufffd"


@pytest.mark.parametrize(
    "value",
    [None, {}, np.zeros((2, 2)), np.array(["a"]), 1 << 64, 1e39, [1 << 31], Scalar("u8", 256)],
)
def test_values_that_gguf_cannot_hold(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UsageError, match="k: a GGUF"):
        write_gguf(tmp_path / "x.gguf", {"k": value}, [])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, BASE, [])
    before = path.read_bytes()
    with pytest.raises(UsageError):
        write_gguf(path, {"k": object()}, [])
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["x.gguf"]


# -- split files ----------------------------------------------------------------------------------


def write_three_shards(folder: Path) -> tuple[list[Path], list[QTensor]]:
    rng = np.random.default_rng(2)
    tensors = [random_tensor(BY_NAME["Q8_0"], rng, f"t{i}") for i in range(7)]
    return write_split_gguf(folder, "m", BASE | {"k": 1}, tensors, num_shards=3), tensors


@pytest.mark.parametrize("given_shard", [0, 1, 2, None])
def test_any_shard_or_the_folder_opens_all(tmp_path: Path, given_shard: int | None) -> None:
    paths, tensors = write_three_shards(tmp_path)
    checkpoint = open_checkpoint(tmp_path if given_shard is None else paths[given_shard])
    assert checkpoint.tensor_names() == [t.name for t in tensors]
    assert checkpoint.metadata["k"] == 1
    assert checkpoint.file_bytes == sum(p.stat().st_size for p in paths)
    for expected in tensors:
        np.testing.assert_array_equal(checkpoint.tensor(expected.name).data, expected.data)


def test_missing_shards_are_named(tmp_path: Path) -> None:
    paths, _ = write_three_shards(tmp_path)
    paths[0].unlink()
    paths[2].unlink()
    expected = "of 3 weight files 2 are missing: m-00001-of-00003.gguf, m-00003-of-00003.gguf"
    with pytest.raises(ModelFileError, match=expected):
        open_checkpoint(paths[1])


def test_swapped_shards_are_noticed(tmp_path: Path) -> None:
    paths, _ = write_three_shards(tmp_path)
    paths[1].rename(tmp_path / "x")
    paths[2].rename(paths[1])
    (tmp_path / "x").rename(paths[2])
    with pytest.raises(ModelFileError, match=r"calls itself shard 2 of 3 .*, its name says 1 of 3"):
        open_checkpoint(paths[0])


def test_a_renamed_shard_says_what_its_name_must_be(tmp_path: Path) -> None:
    paths, _ = write_three_shards(tmp_path)
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="its name must be like NAME-00001-of-00003.gguf"):
        open_checkpoint(renamed)


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    one = float_tensor("same", np.zeros((1, 4), np.float32))
    paths = write_split_gguf(tmp_path, "m", BASE, [one, one], num_shards=2)
    with pytest.raises(ModelFileError, match="tensor same occurs in another shard too"):
        open_checkpoint(paths[0])


def test_tensors_missing_from_the_shards_are_counted(tmp_path: Path) -> None:
    paths, tensors = write_three_shards(tmp_path)
    keys = {"split.no": 2, "split.count": 3, "split.tensors.count": 7}
    write_gguf(paths[2], keys, tensors[-1:])
    with pytest.raises(ModelFileError, match="hold 5 tensors, split.tensors.count is 7"):
        open_checkpoint(paths[0])


@pytest.mark.parametrize("count", [-1, 1 << 20, "3", 2.0])
def test_odd_shard_counts(tmp_path: Path, count: Any) -> None:
    write_gguf(tmp_path / "x.gguf", BASE | {"split.count": count}, [])
    with pytest.raises(ModelFileError, match="split.count is .*, must be an integer"):
        open_checkpoint(tmp_path / "x.gguf")


# -- laziness -------------------------------------------------------------------------------------


@pytest.mark.skipif(system.resident_bytes() is None, reason="needs /proc")
def test_opening_touches_no_weights_and_release_gives_them_back(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    size = 64 << 20
    write_gguf(path, BASE, [float_tensor("big", np.zeros((size // 16384, 4096), np.float32))])
    before = system.resident_bytes()
    checkpoint = open_gguf(path)
    tensor = checkpoint.tensor("big")
    opened = system.resident_bytes()
    assert int(tensor.data[:, ::512].sum()) == 0
    touched = system.resident_bytes()
    checkpoint.release("big")
    released = system.resident_bytes()
    assert before is not None and opened is not None
    assert touched is not None and released is not None
    assert opened - before < size // 16
    assert touched - opened > size * 3 // 4
    assert touched - released > size * 3 // 4
    assert int(tensor.data.sum()) == 0  # still readable


def test_tensors_outlive_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, BASE, [float_tensor("t", np.arange(8, dtype=np.float32))])
    checkpoint = open_gguf(path)
    tensor = checkpoint.tensor("t")
    checkpoint.close()
    del checkpoint
    assert tensor.data.view(np.float32).ravel().tolist() == list(range(8))


def test_a_closed_checkpoint_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, BASE, [float_tensor("t", np.arange(8, dtype=np.float32))])
    checkpoint = open_gguf(path)
    with pytest.raises(ModelFileError, match=r"x\.gguf: tensor u is missing"):
        checkpoint.tensor("u")
    checkpoint.close()
    with pytest.raises(UsageError, match="closed"):
        checkpoint.tensor("t")


def test_release_of_less_than_a_page_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, BASE, [float_tensor("t", np.arange(8, dtype=np.float32))])
    assert path.stat().st_size < mmap.PAGESIZE
    open_gguf(path).release("t")


@pytest.mark.skipif(not REAL_VOCABULARY.exists(), reason="the real vocabulary isn't here")
def test_the_real_vocabulary_opens_at_once() -> None:
    open_gguf(REAL_VOCABULARY).close()  # whatever is paid once only
    start = time.process_time()
    checkpoint = open_gguf(REAL_VOCABULARY)
    seconds = time.process_time() - start
    assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 262_144
    assert len(checkpoint.metadata["tokenizer.ggml.merges"]) == 514_906
    assert checkpoint.metadata["tokenizer.ggml.tokens"][106] == b"<turn|>"
    assert seconds < 0.15  # the project's bound for opening a file with this vocabulary


def test_missing_paths_are_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        open_checkpoint(tmp_path / "none.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(UsageError, match="not a regular file"):
        open_checkpoint(tmp_path / "pipe.gguf")
    with pytest.raises(CuletError):
        open_checkpoint(tmp_path / "none")
