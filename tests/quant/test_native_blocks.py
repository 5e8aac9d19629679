"""The native codecs against the numpy ones: tables, values, plane content, gathers, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

import gguf
import numpy as np
import pytest

from culet import _native
from culet.quant.blocks import decode
from culet.quant.forms import FORMS
from culet.quant.planes import to_planes
from culet.quant.tensor import QTensor
from culet.quant.types import BY_ID, BY_NAME
from support.stored_tensors import (
    CODED_TYPES,
    WEIGHT_TYPES,
    assert_same_bits,
    edge_tensor,
    random_tensor,
)


def test_both_tables_of_forms_are_the_same() -> None:
    native = {row[1]: row for row in _native.plane_forms()}
    assert list(native) == [t.name for t in BY_ID.values() if not t.is_integer]
    for name, (ggml_id, _, block_values, block_bytes, *rest) in native.items():
        qtype = BY_NAME[name]
        assert (ggml_id, block_values, block_bytes) == (
            qtype.ggml_id,
            qtype.block_values,
            qtype.block_bytes,
        )
        assert (name, *rest) == astuple(FORMS[name])


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("IQ1", "IQ1_S"), *((n, n) for n in ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])],
)
def test_vector_codebooks_are_those_of_gguf(name: str, theirs: str) -> None:
    codec = getattr(gguf.quants, theirs)
    codec.init_grid()
    bits, count = (3, 4) if name.startswith("IQ3") else (2, 8)
    packed = np.frombuffer(_native.iq_grid(name), "<u2")
    indices = packed[:, None] >> (np.arange(count) * bits) & ((1 << bits) - 1)
    assert np.array_equal(np.array(codec.grid_map)[indices], codec.grid[0, 0])


def test_an_unknown_codebook_is_refused() -> None:
    with pytest.raises(ValueError, match="no vector codebook is called IQ9"):
        _native.iq_grid("IQ9")


@pytest.mark.parametrize("name", WEIGHT_TYPES)
@pytest.mark.parametrize("make", [random_tensor, edge_tensor])
def test_gathered_values_are_the_decoded_ones(name: str, make: Callable[[str], QTensor]) -> None:
    tensor = make(name)
    expected = decode(tensor)
    ids = np.random.default_rng(5).integers(0, tensor.num_rows, 20, dtype=np.int32)
    out = np.empty((len(ids), tensor.row_values), np.float32)
    _native.gather_rows(tensor.qtype.ggml_id, tensor.data, ids, out)
    assert_same_bits(out, expected[ids])
    _native.gather_rows(tensor.qtype.ggml_id, tensor.data, ids, out, 0.3)
    with np.errstate(all="ignore"):
        assert_same_bits(out, expected[ids] * np.float32(0.3))


def test_every_half_and_bfloat16_is_converted_as_numpy_does() -> None:
    patterns = np.arange(1 << 16, dtype="<u2").reshape(256, 256)
    for name in ["F16", "BF16"]:
        out = np.empty((256, 256), np.float32)
        ids = np.arange(256, dtype=np.int32)
        _native.gather_rows(BY_NAME[name].ggml_id, patterns.view(np.uint8), ids, out)
        if name == "F16":
            expected = patterns.view("<f2").astype(np.float32)
        else:
            expected = (patterns.astype(np.uint32) << 16).view(np.float32)
        assert_same_bits(out, expected)


@pytest.mark.parametrize("name", CODED_TYPES)
@pytest.mark.parametrize("make", [random_tensor, edge_tensor])
def test_plane_content_is_that_of_numpy(name: str, make: Callable[[str], QTensor]) -> None:
    tensor = make(name)
    planes = to_planes(tensor)
    parts = [planes.f16_scales, planes.f16_mins, planes.sub_scales, planes.sub_mins]
    types = [np.uint16, np.uint16, np.int8, np.uint8]
    out = [None if p is None else np.empty(p.shape, t) for p, t in zip(parts, types, strict=True)]
    codes = np.empty_like(planes.codes)
    _native.canonical_rows(tensor.qtype.ggml_id, tensor.data, codes, *out)
    assert np.array_equal(codes, planes.codes)
    for found, expected in zip(out, parts, strict=True):
        if found is not None:
            assert np.array_equal(found, np.ascontiguousarray(expected).view(found.dtype))


@pytest.mark.parametrize("row_id", [-1, 9, 2**31 - 1, -(2**31)])
def test_a_row_outside_of_the_table_is_refused_before_any_is_written(row_id: int) -> None:
    tensor = random_tensor("Q8_0")
    out = np.full((2, tensor.row_values), 7, np.float32)
    ids = np.array([0, row_id], np.int32)
    with pytest.raises(ValueError, match=f"row {row_id} is outside of 0 to 8"):
        _native.gather_rows(tensor.qtype.ggml_id, tensor.data, ids, out)
    assert (out == 7).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    tensor = random_tensor("Q8_0")
    ggml_id, ids = tensor.qtype.ggml_id, np.zeros(2, np.int32)
    with pytest.raises(ValueError, match="rows of 102 bytes can't hold 64 values of Q8_0"):
        _native.gather_rows(ggml_id, tensor.data, ids, np.empty((2, 64), np.float32))
    with pytest.raises(ValueError, match="rows of 102 bytes can't hold 97 values of Q8_0"):
        _native.gather_rows(ggml_id, tensor.data, ids, np.empty((2, 97), np.float32))
    with pytest.raises(ValueError, match="2 ids need as many rows of out, not 3"):
        _native.gather_rows(ggml_id, tensor.data, ids, np.empty((3, 96), np.float32))
    codes, scales = np.empty((9, 96), np.uint8), np.empty((9, 2), np.uint16)
    with pytest.raises(ValueError, match=r"f16_scales must be \[rows, values / 32\]"):
        _native.canonical_rows(ggml_id, tensor.data, codes, scales, None, None, None)
    with pytest.raises(ValueError, match=r"f16_scales must be \[rows, values / 32\]"):
        _native.canonical_rows(ggml_id, tensor.data, codes, None, None, None, None)
    with pytest.raises(ValueError, match="F32 has no codes"):
        _native.canonical_rows(0, tensor.data, codes, None, None, None, None)


@pytest.mark.parametrize("ggml_id", [4, 26, 137, -1])
def test_ids_without_a_codec_are_refused(ggml_id: int) -> None:
    data, ids = np.zeros((1, 32), np.uint8), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match=f"type id {ggml_id} has no codec"):
        _native.gather_rows(ggml_id, data, ids, np.empty((1, 32), np.float32))


def test_arrays_that_would_have_to_be_copied_are_refused() -> None:
    tensor = random_tensor("Q8_0")
    ids = np.zeros(1, np.int32)
    out = np.empty((1, 96), np.float32)
    out.flags.writeable = False
    for refused in [out, np.empty((1, 96)), np.empty((1, 192), np.float32)[:, ::2]]:
        with pytest.raises(TypeError):
            _native.gather_rows(tensor.qtype.ggml_id, tensor.data, ids, refused)
    out = np.empty((1, 96), np.float32)
    with pytest.raises(TypeError):
        _native.gather_rows(tensor.qtype.ggml_id, tensor.data[:, ::2], ids, out)
    with pytest.raises(TypeError):
        _native.gather_rows(tensor.qtype.ggml_id, tensor.data, ids.astype(np.int64), out)


def test_a_read_only_mapping_can_be_gathered_from() -> None:
    tensor = random_tensor("Q8_0")
    expected = decode(tensor)
    tensor.data.flags.writeable = False
    out = np.empty((1, 96), np.float32)
    _native.gather_rows(tensor.qtype.ggml_id, tensor.data, np.array([4], np.int32), out)
    assert_same_bits(out, expected[[4]])


def test_f64_that_float32_cannot_hold_is_refused() -> None:
    data = np.array([[1 / 3]], "<f8").view(np.uint8)
    ids = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="F64 row holds a value that float32 can't"):
        _native.gather_rows(BY_NAME["F64"].ggml_id, data, ids, np.empty((1, 1), np.float32))
