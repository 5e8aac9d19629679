"""float32 rows -> stored blocks: F32, F16, BF16, Q4_0, Q8_0, Q4_K, Q5_K and Q6_K.

Q4_0 and Q8_0 follow ggml's reference to the bit. The K-quants search each group's scale by least
squares over a few candidates and need no importance weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from culet.errors import UsageError
from culet.quant.planes import Float32Array, row_slices
from culet.quant.types import QuantType
from culet.quant.unpack import U8, joined

_F16_MAX = 65504


def encode(values: NDArray[np.floating], qtype: QuantType) -> U8:
    """uint8 [..., row_bytes] of values [..., row_values].

    Raises UsageError for a type without an encoder, rows of part blocks, and (but for F32, F16 and
    BF16) values outside of f16's range, whose scales might not fit.
    """
    encoder = _ENCODERS.get(qtype.name)
    if encoder is None:
        raise UsageError(f"{qtype.name} can't be encoded, only {', '.join(_ENCODERS)}")
    row_values = values.shape[-1]
    if row_values % qtype.block_values:
        raise UsageError(
            f"rows of {row_values} values can't be {qtype.name}, "
            f"which stores multiples of {qtype.block_values}"
        )
    rows = values.reshape(-1, row_values)
    out = np.empty((len(rows), qtype.row_bytes(row_values)), np.uint8)
    for part in row_slices(len(rows), row_values):
        blocks = np.ascontiguousarray(rows[part], np.float32).reshape(-1, qtype.block_values)
        if qtype.block_values > 1 and not (np.abs(blocks) <= _F16_MAX).all():
            raise UsageError(f"only values from -{_F16_MAX} to {_F16_MAX} can be {qtype.name}")
        out[part] = encoder(blocks).reshape(-1, out.shape[1])
    return out.reshape(*values.shape[:-1], out.shape[1])


def _bytes(array: NDArray[np.generic]) -> U8:
    """[n, m] of any little-endian type as uint8 [n, m * itemsize]."""
    return np.ascontiguousarray(array).view(np.uint8)


def _f32(blocks: Float32Array) -> U8:
    return _bytes(blocks)


def _f16(blocks: Float32Array) -> U8:
    with np.errstate(over="ignore"):
        return _bytes(blocks.astype("<f2"))


def _bf16(blocks: Float32Array) -> U8:
    """To nearest, ties to even; a NaN keeps its sign and upper payload and becomes quiet."""
    bits = blocks.view(np.uint32)
    upper = bits >> np.uint32(16)
    rounded = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    return _bytes(np.where(np.isnan(blocks), upper | np.uint32(0x40), rounded).astype("<u2"))


def _pack(codes: U8, run: int, bits: int) -> U8:
    """The inverse of `unpack.fields`: [n, m] codes of `bits` bits -> [n, m * bits / 8]."""
    per_byte = 8 // bits
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = codes.reshape(len(codes), -1, per_byte, run) << shifts
    packed: U8 = np.bitwise_or.reduce(runs, axis=2)
    return packed.reshape(len(codes), -1)


def _inverse(scales: Float32Array) -> Float32Array:
    """1 / scale, and 0 for a scale of 0 or so small that its inverse overflows."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scales
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _q4_0(blocks: Float32Array) -> U8:
    """The value of largest magnitude becomes code 0, that is -8."""
    largest = np.argmax(np.abs(blocks), axis=1)[:, None]
    scale = np.take_along_axis(blocks, largest, axis=1) / np.float32(-8)
    # Truncation of x + 8.5: never negative, so it rounds halves up, and 16 is clipped to 15.
    shifted = blocks * _inverse(scale) + np.float32(8.5)
    codes = np.minimum(shifted.astype(np.uint8), np.uint8(15))
    return np.concatenate([_bytes(scale.astype("<f2")), _pack(codes, 16, 4)], axis=1)


def _q8_0(blocks: Float32Array) -> U8:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scale)
    magnitude = np.abs(scaled)
    whole = np.floor(magnitude)
    # Halves round away from zero.
    rounded = np.copysign(whole + np.floor(2 * (magnitude - whole)), scaled)
    return np.concatenate([_bytes(scale.astype("<f2")), _bytes(rounded.astype(np.int8))], axis=1)


def _without_dust(blocks: Float32Array) -> Float32Array:
    """Values below a quarter of 2^-24, the least that a K-quant can hold, become 0.

    They would be 0 anyway, and make products of the search overflow.
    """
    return np.where(np.abs(blocks) < np.float32(2.0**-26), np.float32(0), blocks)


def _fit_with_min(groups: Float32Array, top: int) -> tuple[Float32Array, Float32Array]:
    """Scale and min of groups [n, g] for x ~ scale * code - min, code 0 to `top`, both >= 0.

    Each candidate divides the range into a little more or fewer than `top` steps, rounds, and
    solves the least-squares problem for those codes; the candidate with the least error is kept.
    """
    low = np.minimum(groups.min(axis=1), 0)
    span = np.maximum(groups.max(axis=1) - low, 0)
    best_scale, best_min = span / np.float32(top), -low
    best_error = np.full(len(groups), np.inf, np.float32)
    size = np.float32(groups.shape[1])
    sum_x = groups.sum(axis=1)
    for step in np.arange(-1.0, 1.2, 0.1, dtype=np.float32):
        per_value = (np.float32(top) + step) * _inverse(span)
        codes = np.clip(np.rint((groups - low[:, None]) * per_value[:, None]), 0, top)
        sum_c = codes.sum(axis=1)
        sum_cc = (codes * codes).sum(axis=1)
        sum_cx = (codes * groups).sum(axis=1)
        determinant = size * sum_cc - sum_c * sum_c
        scale = (size * sum_cx - sum_c * sum_x) * _inverse(determinant)
        minimum = (sum_c * sum_cx - sum_cc * sum_x) * _inverse(determinant)
        # A negative min isn't storable: refit the scale alone.
        through_zero = minimum < 0
        minimum = np.where(through_zero, np.float32(0), minimum)
        scale = np.where(through_zero, sum_cx * _inverse(sum_cc), scale)
        scale = np.maximum(scale, 0)
        residual = groups - (scale[:, None] * codes - minimum[:, None])
        error = (residual * residual).sum(axis=1)
        # All codes equal: scale and min aren't determined.
        better = (error < best_error) & (determinant > 0)
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale)
        best_min = np.where(better, minimum, best_min)
    return best_scale, best_min


def _in_64_steps(factors: Float32Array) -> tuple[NDArray[np.float16], U8]:
    """Non-negative [n, 8] as f16 [n, 1] times codes of 6 bits."""
    unit = (factors.max(axis=1, keepdims=True) / np.float32(63)).astype("<f2")
    codes = np.rint(factors * _inverse(unit.astype(np.float32)))
    return unit, np.minimum(codes, 63).astype(np.uint8)


def _pack_scales_k4(scales: U8, mins: U8) -> U8:
    """[n, 8] scales and mins of 6 bits -> [n, 12]; see `unpack_k`."""
    first = joined(scales[:, :4], scales[:, 4:] >> np.uint8(4), 6)
    second = joined(mins[:, :4], mins[:, 4:] >> np.uint8(4), 6)
    low = np.uint8(15)
    return np.concatenate(
        [first, second, joined(scales[:, 4:] & low, mins[:, 4:] & low, 4)], axis=1
    )


def _with_mins(blocks: Float32Array, top: int) -> tuple[U8, U8]:
    """Header [n, 16] (d, dmin, scales, mins) and codes [n, 256] of Q4_K and Q5_K."""
    groups = _without_dust(blocks).reshape(-1, 32)
    scale, minimum = _fit_with_min(groups, top)
    d, scales = _in_64_steps(scale.reshape(-1, 8))
    dmin, mins = _in_64_steps(minimum.reshape(-1, 8))
    # Codes are rounded again, for the scales and mins as they are stored.
    stored_scale = (d.astype(np.float32) * scales).reshape(-1, 1)
    stored_min = (dmin.astype(np.float32) * mins).reshape(-1, 1)
    codes = np.clip(np.rint((groups + stored_min) * _inverse(stored_scale)), 0, top)
    header = np.concatenate([_bytes(d), _bytes(dmin), _pack_scales_k4(scales, mins)], axis=1)
    return header, codes.astype(np.uint8).reshape(-1, 256)


def _q4_k(blocks: Float32Array) -> U8:
    header, codes = _with_mins(blocks, 15)
    return np.concatenate([header, _pack(codes, 32, 4)], axis=1)


def _q5_k(blocks: Float32Array) -> U8:
    header, codes = _with_mins(blocks, 31)
    low, high = codes & np.uint8(15), codes >> np.uint8(4)
    return np.concatenate([header, _pack(high, 32, 1), _pack(low, 32, 4)], axis=1)


def _fit_signed(groups: Float32Array) -> Float32Array:
    """Scale of groups [n, g] for x ~ scale * code, code -32 to 31; it may be negative.

    Candidates map the value of largest magnitude to about -32, as in `_fit_with_min`.
    """
    largest = np.argmax(np.abs(groups), axis=1)[:, None]
    extreme = np.take_along_axis(groups, largest, axis=1)[:, 0]
    best_scale = extreme / np.float32(-32)
    best_error = np.full(len(groups), np.inf, np.float32)
    for step in np.arange(-0.9, 1.0, 0.1, dtype=np.float32):
        per_value = -(np.float32(32) + step) * _inverse(extreme)
        codes = np.clip(np.rint(groups * per_value[:, None]), -32, 31)
        sum_cc = (codes * codes).sum(axis=1)
        scale = (codes * groups).sum(axis=1) * _inverse(sum_cc)
        residual = groups - scale[:, None] * codes
        error = (residual * residual).sum(axis=1)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale)
    return best_scale


def _q6_k(blocks: Float32Array) -> U8:
    groups = _without_dust(blocks).reshape(-1, 16)
    scale = _fit_signed(groups).reshape(-1, 16)
    largest = np.argmax(np.abs(scale), axis=1)[:, None]
    # The scale of largest magnitude becomes -128, which uses the whole range of int8.
    d = (np.take_along_axis(scale, largest, axis=1) / np.float32(-128)).astype("<f2")
    scales = np.clip(np.rint(scale * _inverse(d.astype(np.float32))), -128, 127).astype(np.int8)
    stored = (d.astype(np.float32) * scales).reshape(-1, 1)
    codes = np.clip(np.rint(groups * _inverse(stored)), -32, 31).astype(np.int8)
    biased = (codes + np.int8(32)).view(np.uint8).reshape(-1, 256)
    low, high = biased & np.uint8(15), biased >> np.uint8(4)
    return np.concatenate(
        [_pack(low, 64, 4), _pack(high, 32, 2), _bytes(scales), _bytes(d)], axis=1
    )


_ENCODERS: dict[str, Callable[[Float32Array], U8]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
