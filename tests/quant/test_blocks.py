"""The reference decoder: bit for bit the gguf package's values, or values written out here."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import gguf
import numpy as np
import pytest

from culet.errors import ModelFileError, UnsupportedModelError
from culet.quant.blocks import decode, decode_rows
from culet.quant.planes import to_planes
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME
from support.stored_tensors import WEIGHT_TYPES, assert_same_bits, edge_tensor, random_tensor

# Decoded by hand below: the gguf package has no codec for them.
NOT_IN_GGUF = {"F64", "Q1_0", "Q2_0"}


def gguf_values(tensor: QTensor) -> np.ndarray:
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(
            tensor.data, gguf.GGMLQuantizationType(tensor.qtype.ggml_id)
        )
    return values.astype(np.float32).reshape(tensor.shape)


def f16(*values: float) -> bytes:
    return np.array(values, "<f2").tobytes()


def stored(name: str, row: bytes) -> QTensor:
    qtype = BY_NAME[name]
    num_values = len(row) // qtype.block_bytes * qtype.block_values
    return QTensor("t", qtype, (1, num_values), np.frombuffer(row, np.uint8)[None])


@pytest.mark.parametrize("name", [n for n in WEIGHT_TYPES if n not in NOT_IN_GGUF])
@pytest.mark.parametrize("make", [random_tensor, edge_tensor])
def test_values_are_those_of_gguf(name: str, make: Callable[[str], QTensor]) -> None:
    tensor = make(name)
    assert_same_bits(decode(tensor), gguf_values(tensor))


@pytest.mark.parametrize("exponent", [0, 1, 127, 254, 255])
def test_edge_exponents_of_mxfp4(exponent: int) -> None:
    """The largest has no float32 and 255 is NaN by the standard; ggml's halved values are the
    reference."""
    tensor = random_tensor("MXFP4")
    tensor.data.reshape(-1, tensor.qtype.block_bytes)[:, 0] = exponent
    with np.errstate(over="ignore"):
        expected = gguf.dequantize(tensor.data, gguf.GGMLQuantizationType.MXFP4)
        assert_same_bits(decode(tensor), expected)


def test_q1_0_by_hand() -> None:
    # Lowest bit first; a set bit is +d.
    row = f16(0.5) + bytes([0b00000101]) + bytes(14) + bytes([0x80])
    expected = np.full((1, 128), -0.5, np.float32)
    expected[0, [0, 2, 127]] = 0.5
    assert_same_bits(decode(stored("Q1_0", row)), expected)


def test_q2_0_by_hand() -> None:
    # Four consecutive values a byte, lowest pair first; 0 to 3 stand for -1 to 2.
    row = f16(-0.25) + bytes([0b11100100]) + bytes([0b01010101] * 15)
    expected = np.zeros((1, 64), np.float32)
    expected[0, :4] = [0.25, 0.0, -0.25, -0.5]
    expected[0, [1, *range(4, 64)]] = -0.0
    assert_same_bits(decode(stored("Q2_0", row)), expected)


def test_nvfp4_by_hand() -> None:
    # Scales 1, 2^-9 (the least subnormal), 448 (the largest) and the NaN pattern, which counts as
    # 0; each group's low nibbles come first.
    row = bytes([0x38, 0x01, 0x7E, 0x7F]) + bytes([0x21] + [0] * 7) * 4
    expected = np.zeros((1, 64), np.float32)
    expected[0, 0::16] = [0.5, 0.5 * 2**-9, 224.0, 0.0]
    expected[0, 8::16] = [1.0, 2**-9, 448.0, 0.0]
    assert_same_bits(decode(stored("NVFP4", row)), expected)


def test_f64_is_read_where_float32_holds_it() -> None:
    values = np.array([[0.5, -0.0, 1e-45, np.inf, np.nan, -3.0]], np.float32)
    tensor = stored("F64", values.astype("<f8").tobytes())
    assert_same_bits(decode(tensor), values)


@pytest.mark.parametrize("value", [0.1, 1e300, 1e-300, 16777217.0])
def test_f64_that_float32_cannot_hold_is_refused(value: float) -> None:
    tensor = stored("F64", np.array([1.0, value], "<f8").tobytes())
    with pytest.raises(ModelFileError, match=r"^tensor t is F64 and holds "):
        decode(tensor)


def test_the_scale_of_a_tensor_multiplies_its_decoded_values() -> None:
    tensor = random_tensor("NVFP4")
    scaled = replace(tensor, scale=np.array([0.3], np.float32))
    assert_same_bits(decode(scaled), decode(tensor) * np.float32(0.3))


def test_stacked_experts_have_a_scale_each() -> None:
    flat = random_tensor("NVFP4", num_rows=6)
    experts = replace(
        flat, shape=(3, 2, flat.row_values), scale=np.array([1.5, -2.0, 0.3], np.float32)
    )
    expected = decode(flat).reshape(experts.shape) * experts.scale[:, None, None]
    assert_same_bits(decode(experts), expected)
    assert_same_bits(decode_rows(experts, np.array([5, 2])), expected.reshape(6, -1)[[5, 2]])


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_rows_are_those_of_the_whole(name: str) -> None:
    tensor = edge_tensor(name)
    ids = np.array([3, 0, 3, tensor.num_rows - 1])
    assert_same_bits(decode_rows(tensor, ids), decode(tensor)[ids])
    assert decode_rows(tensor, ids[:0]).shape == (0, tensor.row_values)


def test_a_gather_reads_only_its_rows() -> None:
    # A table of 2^40 rows that share one row's memory: reading it all would never end.
    row = random_tensor("Q6_K", num_rows=1)
    table = replace(
        row,
        shape=(1 << 40, row.row_values),
        data=np.broadcast_to(row.data, (1 << 40, row.data.shape[1])),
    )
    assert_same_bits(decode_rows(table, np.array([7, 1 << 39])), decode(row)[[0, 0]])


@pytest.mark.parametrize("row_id", [-1, 9])
def test_a_row_outside_of_the_table_is_refused(row_id: int) -> None:
    with pytest.raises(IndexError, match=f"random_Q8_0 has rows 0 to 8, not {row_id}"):
        decode_rows(random_tensor("Q8_0"), np.array([0, row_id]))


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "F16", "NVFP4"])
def test_slices_join_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_tensor(name, num_rows=7)
    whole = decode(tensor)
    monkeypatch.setattr("culet.quant.planes._SLICE_VALUES", 2 * tensor.row_values)
    assert_same_bits(decode(tensor), whole)


def test_decoding_holds_one_slice_besides_the_result() -> None:
    tensor = random_tensor("Q4_K", num_rows=2048, num_blocks=16)
    tracemalloc.start()
    values = decode(tensor)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A slice of 2^20 values needs its codes, three byte-sized steps of unpacking them, and float32
    # values twice: 12 bytes a value. The whole tensor of 2^23 values would need 96 MiB of these.
    assert peak_bytes < values.nbytes + 12 * (1 << 20) * 1.25


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            QTensor("t", BY_NAME["Q4_0"], (2, 33), np.zeros((2, 18), np.uint8)),
            r"^tensor t has rows of 33 values, but Q4_0 stores multiples of 32$",
        ),
        (
            QTensor("t", BY_NAME["Q4_0"], (0, 32), np.zeros((0, 18), np.uint8)),
            r"^tensor t has shape \(0, 32\), that is no values$",
        ),
        (
            QTensor("t", BY_NAME["Q4_0"], (2, 64), np.zeros((2, 18), np.uint8)),
            r"^tensor t has \(2, 18\) bytes, but Q4_0 of shape \(2, 64\) needs \(2, 36\)$",
        ),
        (
            QTensor(
                *("t", BY_NAME["F16"], (3, 2), np.zeros((3, 4), np.uint8)),
                scale=np.ones(2, np.float32),
            ),
            r"^tensor t has 2 scales for 3 rows, but needs 1, or one per leading index$",
        ),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(tensor: QTensor, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        decode(tensor)
    with pytest.raises(ModelFileError, match=message):
        decode_rows(tensor, np.zeros(1, np.int32))
    with pytest.raises(ModelFileError, match=message):
        to_planes(tensor)


def test_integers_are_not_weights() -> None:
    tensor = QTensor("t", BY_NAME["I32"], (1, 2), np.zeros((1, 8), np.uint8))
    with pytest.raises(UnsupportedModelError, match="tensor t holds I32 integers"):
        decode(tensor)
