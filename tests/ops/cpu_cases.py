"""Random weights with scales as models have them, and what the CPU's fast path should compute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from culet import _native
from culet.ops.cpu.backend import CpuOps
from culet.ops.interface import Precision
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME
from support.stored_tensors import F16_OFFSETS

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]

LEVELS = _native.isa_levels()
UNIT_ROUNDOFF = 2.0**-24


def random_weight(
    name: str, num_rows: int, num_cols: int, seed: int = 0, lowest_byte: int = 0
) -> QTensor:
    """Random codes and sub-scales from `lowest_byte` on; block scales between 1/128 and 1/64."""
    qtype = BY_NAME[name]
    rng = np.random.default_rng([seed, qtype.ggml_id, num_rows, num_cols])
    shape = (num_rows, num_cols)
    if qtype.block_values == 1:
        values = rng.standard_normal(shape).astype(np.float32)
        if name == "F16":
            stored = values.astype(np.float16).view(np.uint8)
        elif name == "BF16":
            stored = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            stored = values.astype(np.float64 if name == "F64" else np.float32).view(np.uint8)
        return QTensor(f"random_{name}", qtype, shape, stored)
    data = rng.integers(lowest_byte, 256, (num_rows, qtype.row_bytes(num_cols)), dtype=np.uint8)
    blocks = data.reshape(-1, qtype.block_bytes)
    for offset in F16_OFFSETS.get(name, []):
        scales = rng.uniform(1 / 128, 1 / 64, len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(118, 124, len(blocks))
    elif name == "NVFP4":
        blocks[:, :4] = rng.integers(0x10, 0x30, (len(blocks), 4))
    elif name == "IQ1_M":
        for i, nibble in enumerate([0, 0, 0, 2]):  # 2^-7 and a bit
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | nibble << 4
    return QTensor(f"random_{name}", qtype, shape, data)


def cpu_ops(level: str | None = None, threads: int = 2, precision: Precision = "fast") -> CpuOps:
    """A backend of one ISA level, without the environment."""
    ops = CpuOps.__new__(CpuOps)
    _native.Recorder.__init__(ops, threads, precision == "exact", level)
    ops.precision = precision
    return ops


def decoded(ops: CpuOps, weight: _native.Table, shape: tuple[int, ...]) -> Float32Array:
    """The values of a weight's planes."""
    values = np.empty(shape, np.float32)
    weight.decode_rows(0, values)
    return values


def multiply(ops: CpuOps, x: Float32Array, weight: _native.Weight, num_rows: int) -> Float32Array:
    """x weight^T by the backend."""
    out = np.full((len(x), num_rows), np.nan, np.float32)
    ops.norm_linear([out], x, None, 1e-6, [weight])
    ops.sync()
    return out


def int8_activations(x: Float32Array) -> Float64Array:
    """What the int8 encoding of activations holds: codes times max|x| / 127, in groups of 32."""
    padded = np.zeros((len(x), -(-x.shape[1] // 32) * 32), np.float32)
    padded[:, : x.shape[1]] = x
    groups = padded.reshape(len(x), -1, 32)
    peak = np.abs(groups).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    codes = np.rint(groups * inverse).astype(np.float64)
    values = codes * (peak / np.float32(127)).astype(np.float64)
    return values.reshape(padded.shape)[:, : x.shape[1]]


def bf16_rounded(x: Float32Array) -> Float32Array:
    """Rounded to bfloat16, to nearest even."""
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def summation_bound(
    x: NDArray[np.floating], weight: Float32Array, num_roundings: int
) -> Float64Array:
    """Largest error of sums of products, each term passing at most `num_roundings` roundings."""
    magnitudes = np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64).T
    return magnitudes * num_roundings * UNIT_ROUNDOFF * 1.01
