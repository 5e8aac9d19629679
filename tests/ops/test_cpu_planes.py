"""Weights re-encoded into tiled planes hold exactly the values of their blocks."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_cases import cpu_ops, decoded, random_weight

from culet.errors import ModelFileError
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME
from support.stored_tensors import WEIGHT_TYPES, assert_same_bits


def stored_values(source: QTensor) -> np.ndarray:
    values = np.empty(source.shape, np.float32)
    cpu_ops().table(source, "disk").decode_rows(0, values)
    return values


@pytest.mark.parametrize("num_rows", [1, 16, 35])
@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_planes_hold_the_stored_values(name: str, num_rows: int) -> None:
    qtype = BY_NAME[name]
    cols = 3 * qtype.block_values if qtype.block_values > 1 else 67
    rng = np.random.default_rng(num_rows)
    source = random_weight(name, num_rows, cols)
    if qtype.block_values > 1:  # any bytes: NaN, infinite and subnormal scales included
        source.data[:] = rng.integers(0, 256, source.data.shape)
    ops = cpu_ops()
    weight = ops.weight(source)
    assert_same_bits(decoded(ops, weight, source.shape), stored_values(source))


@pytest.mark.parametrize("scale", [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0x7C00, 0x7E00])
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "IQ2_S"])
def test_edge_scales(name: str, scale: int) -> None:
    source = random_weight(name, 17, 512)
    blocks = source.data.reshape(-1, source.qtype.block_bytes)
    offset = 208 if name == "Q6_K" else 0
    blocks[:, offset] = scale & 255
    blocks[:, offset + 1] = scale >> 8
    ops = cpu_ops()
    assert_same_bits(decoded(ops, ops.weight(source), source.shape), stored_values(source))


@pytest.mark.parametrize("exponent", [0, 1, 127, 254, 255])
def test_edge_exponents(exponent: int) -> None:
    source = random_weight("MXFP4", 17, 64)
    source.data.reshape(-1, source.qtype.block_bytes)[:, 0] = exponent
    ops = cpu_ops()
    assert_same_bits(decoded(ops, ops.weight(source), source.shape), stored_values(source))


def test_factor_beside_the_tensor() -> None:
    source = random_weight("NVFP4", 5, 64)
    factor = np.float32(0.37)
    scaled = QTensor(source.name, source.qtype, source.shape, source.data, np.array([factor]))
    ops = cpu_ops()
    expected = stored_values(source) * factor
    assert_same_bits(decoded(ops, ops.weight(scaled), source.shape), expected)
    looked_up = np.empty(source.shape, np.float32)
    ops.table(scaled, "host").decode_rows(0, looked_up)
    assert_same_bits(looked_up, expected)


def test_float_matrices_of_bf16_values_become_bf16() -> None:
    values = random_weight("BF16", 16, 64)
    wide = (values.data.view(np.uint16).astype(np.uint32) << 16).view(np.uint8)
    f32 = QTensor("f32", BY_NAME["F32"], (16, 64), wide)
    ops = cpu_ops()
    assert ops.weight(f32).num_bytes == ops.weight(values).num_bytes
    assert ops.weight(random_weight("F32", 16, 64)).num_bytes == 2 * ops.weight(values).num_bytes


def test_planes_are_as_small_as_the_file() -> None:
    """Within 2% for the types of the usual files, of rows that fill their units."""
    ops = cpu_ops()
    for name in ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "BF16"):
        source = random_weight(name, 64, 2048)
        assert ops.weight(source).num_bytes <= 1.034 * source.num_bytes, name


def test_doubles_that_are_not_floats_are_refused() -> None:
    data = np.full((2, 3), 0.1).view(np.uint8)
    with pytest.raises(ModelFileError, match=r"tensor d: F64 values that float32 can't hold"):
        cpu_ops().weight(QTensor("d", BY_NAME["F64"], (2, 3), data))


def test_disk_tables_read_the_mapping_and_host_tables_do_not() -> None:
    source = random_weight("Q8_0", 4, 64)
    ops = cpu_ops()
    disk, host = ops.table(source, "disk"), ops.table(source, "host")
    assert disk.reads_source and not host.reads_source
    before = stored_values(source)
    source.data[:] = 0
    after = np.empty(source.shape, np.float32)
    host.decode_rows(0, after)
    assert_same_bits(after, before)
    disk.decode_rows(0, after)
    assert not after.any()
