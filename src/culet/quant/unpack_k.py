"""K-quant blocks of 256 values -> codes and scales. One function per type; see `unpack`."""

from __future__ import annotations

import numpy as np

from culet.quant.unpack import U8, Parts, Unpack, f16_at, fields, joined


def _q2_k(b: U8) -> Parts:
    """16 x (scale low nibble, min high nibble), 64 bytes of codes, d f16, dmin f16."""
    scales, mins = b[:, :16] & np.uint8(15), b[:, :16] >> np.uint8(4)
    codes = fields(b[:, 16:80], 32, 2)
    return Parts(codes, f16_at(b, 80), f16_at(b, 82), scales.view(np.int8), mins)


def _q3_k(b: U8) -> Parts:
    """32 bytes of high bits (bit r of byte i: run r of 32), 64 bytes of low pairs, scales, d f16.

    12 bytes of scales: 8 bytes of low nibbles, 4 bytes of high pairs. A scale is stored + 32.
    """
    codes = joined(fields(b[:, 32:96], 32, 2), fields(b[:, :32], 32, 1), 2)
    stored = joined(fields(b[:, 96:104], 8, 4), fields(b[:, 104:108], 4, 2), 4)
    return Parts(codes, f16_at(b, 108), sub_scales=stored.view(np.int8) - np.int8(32))


def _scales_k4(packed: U8) -> tuple[U8, U8]:
    """The 8 scales and 8 mins of 6 bits in 12 bytes.

    Bytes 0 to 3 are scales 0 to 3 with the high pairs of scales 4 to 7 above them; bytes 4 to 7
    are the mins likewise; bytes 8 to 11 hold the low nibbles of scale and min 4 to 7.
    """
    first_four = packed[:, :8] & np.uint8(63)
    high = packed[:, :8] >> np.uint8(6)
    last_four = joined(fields(packed[:, 8:], 4, 4), high, 4)
    scales = np.concatenate([first_four[:, :4], last_four[:, :4]], axis=1)
    mins = np.concatenate([first_four[:, 4:], last_four[:, 4:]], axis=1)
    return scales, mins


def _q4_k(b: U8) -> Parts:
    """d f16, dmin f16, 12 bytes of scales and mins, 4 x 32 bytes of two runs of 32 codes."""
    scales, mins = _scales_k4(b[:, 4:16])
    codes = fields(b[:, 16:144], 32, 4)
    return Parts(codes, f16_at(b, 0), f16_at(b, 2), scales.view(np.int8), mins)


def _q5_k(b: U8) -> Parts:
    """As Q4_K, with 32 bytes of high bits (bit r of byte i: run r of 32) before the codes."""
    scales, mins = _scales_k4(b[:, 4:16])
    codes = joined(fields(b[:, 48:176], 32, 4), fields(b[:, 16:48], 32, 1), 4)
    return Parts(codes, f16_at(b, 0), f16_at(b, 2), scales.view(np.int8), mins)


def _q6_k(b: U8) -> Parts:
    """Two halves of 64 bytes of low nibbles, two of 32 bytes of high pairs, 16 x int8, d f16."""
    codes = joined(fields(b[:, :128], 64, 4), fields(b[:, 128:192], 32, 2), 4)
    return Parts(codes, f16_at(b, 208), sub_scales=b[:, 192:208].view(np.int8))


UNPACK_K: dict[str, Unpack] = {
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
