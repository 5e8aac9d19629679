"""Random stored tensors of every type, with scales from the edges of f16, and how to compare."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from culet.quant.tensor import QTensor
from culet.quant.types import BY_ID, BY_NAME

WEIGHT_TYPES = [t.name for t in BY_ID.values() if not t.is_integer]
CODED_TYPES = [name for name in WEIGHT_TYPES if BY_NAME[name].block_values > 1]

# Where a block holds its f16 scale and, second, its f16 min. IQ1_M's is in four nibbles; MXFP4 and
# NVFP4 have bytes, all values of which occur in enough random blocks.
F16_OFFSETS = {
    **dict.fromkeys(["Q4_0", "Q5_0", "Q8_0", "Q1_0", "Q2_0", "IQ4_NL", "IQ4_XS"], [0]),
    **dict.fromkeys(["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"], [0]),
    **dict.fromkeys(["Q4_1", "Q5_1", "Q4_K", "Q5_K"], [0, 2]),
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q6_K": [208],
    "TQ1_0": [52],
    "TQ2_0": [64],
}

# Zero, subnormal, least normal, one, largest, infinite and NaN, of both signs.
EDGE_F16 = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x3C00, 0xBC00]
    + [0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01],
    "<u2",
)


def random_tensor(name: str, num_rows: int = 9, num_blocks: int = 3, seed: int = 0) -> QTensor:
    """Random bytes: every code, sub-scale and, where scales are f16, many a NaN."""
    qtype = BY_NAME[name]
    rng = np.random.default_rng([seed, qtype.ggml_id])
    row_values = qtype.block_values * (num_blocks if qtype.block_values > 1 else 67)
    if name == "F64":
        data = rng.standard_normal((num_rows, row_values), np.float32).astype("<f8").view(np.uint8)
    else:
        shape = (num_rows, qtype.row_bytes(row_values))
        data = rng.integers(0, 256, shape, dtype=np.uint8)
    return QTensor(f"random_{name}", qtype, (num_rows, row_values), data)


def edge_tensor(name: str) -> QTensor:
    """Random codes with every pair of an edge scale and an edge min."""
    num_edges = len(EDGE_F16)
    tensor = random_tensor(name, num_edges, num_edges, seed=1)
    if tensor.qtype.block_values == 1:
        return tensor
    blocks = tensor.data.reshape(num_edges, num_edges, tensor.qtype.block_bytes)
    by_row = np.repeat(EDGE_F16[:, None], num_edges, axis=1)
    for offset, edges in zip(F16_OFFSETS.get(name, []), [by_row, by_row.T], strict=False):
        blocks[:, :, offset] = edges & 0xFF
        blocks[:, :, offset + 1] = edges >> 8
    if name == "IQ1_M":
        for i in range(4):
            nibble = (by_row >> (4 * i) & 15).astype(np.uint8)
            blocks[:, :, 49 + 2 * i] = blocks[:, :, 49 + 2 * i] & 15 | nibble << 4
    return tensor


def assert_same_bits(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equal bit for bit, signs of zeros included; of a NaN only that it is one."""
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape
    both_nan = np.isnan(found) & np.isnan(expected)
    different = (found.view(np.uint32) != expected.view(np.uint32)) & ~both_nan
    where = np.argwhere(different)
    assert not len(where), f"{len(where)} differ, first at {where[0]}"
