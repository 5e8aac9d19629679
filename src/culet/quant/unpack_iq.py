"""IQ blocks of 256 values -> codes and scales. One function per type; see `unpack`.

IQ1 and IQ2 look codes up 8 at a time, IQ3 4 at a time, in vector codebooks. Those tables exist
once, in csrc/iq_grids.cpp, and are read from the native module.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from culet import _native
from culet.quant.unpack import U8, Parts, Unpack, bits_of, f16_at, fields, joined, u16_at, u32_at


@cache
def _grid(name: str) -> U8:
    """Vector codebook [entries, 8 or 4] of magnitude (or, for IQ1, digit) indices."""
    bits, count = (3, 4) if name.startswith("IQ3") else (2, 8)
    packed = np.frombuffer(_native.iq_grid(name), "<u2")
    shifts = np.arange(count, dtype=np.uint16) * bits
    return ((packed[:, None] >> shifts) & ((1 << bits) - 1)).astype(np.uint8)


def _even_signs(signs7: NDArray[np.integer]) -> U8:
    """Sign bits [n, 8 m] of [n, m] groups that store 7: an even number of signs is negative."""
    stored = (signs7 & 127).astype(np.uint8)
    parity = np.bitwise_xor.reduce(bits_of(stored).reshape(*stored.shape, 8), axis=-1)
    return bits_of(stored | parity << 7)


def _odd(stored: NDArray[np.integer]) -> NDArray[np.int8]:
    """An IQ sub-scale: the stored s stands for s + 1/2, kept as the integer 2 s + 1."""
    return (2 * stored + 1).astype(np.int8)


def _codes(name: str, indices: NDArray[np.integer], high_bits: U8) -> U8:
    """Vector codebook entries [n, 256] with the sign (or IQ1 delta) above the index bits."""
    shift = 3 if name.startswith("IQ3") else 2
    entries: U8 = _grid(name)[indices].reshape(len(indices), -1)
    return joined(entries, high_bits, shift)


def _shifted(words: NDArray[np.unsignedinteger], step: int, count: int) -> NDArray[np.integer]:
    """[n, m] -> [n, m * count]: each word shifted right by 0, step, 2 step, ..."""
    shifts = np.arange(count, dtype=words.dtype) * step
    shifted: NDArray[np.integer] = words[:, :, None] >> shifts
    return shifted.reshape(len(words), -1)


def _iq2_xxs(b: U8) -> Parts:
    """d f16, 8 x (4 grid indices, then u32 of 4 x 7 signs and a scale in the top 4 bits)."""
    indices = b[:, 2:66].reshape(-1, 8, 8)[:, :, :4].reshape(-1, 32)
    aux = u32_at(b, 2, 16)[:, 1::2]
    codes = _codes("IQ2_XXS", indices, _even_signs(_shifted(aux, 7, 4)))
    return Parts(codes, f16_at(b, 0), sub_scales=_odd(aux >> 28))


def _iq2_xs(b: U8) -> Parts:
    """d f16, 32 x u16 (9 bits of grid index, 7 signs), 8 x two scales."""
    entries = u16_at(b, 2, 32)
    codes = _codes("IQ2_XS", entries & 511, _even_signs(entries >> 9))
    return Parts(codes, f16_at(b, 0), sub_scales=_odd(fields(b[:, 66:74], 1, 4)))


def _iq2_s(b: U8) -> Parts:
    """d f16, 32 low index bytes, 32 sign bytes, 8 x 4 x two high index bits, 8 x two scales."""
    indices = b[:, 2:34] | fields(b[:, 66:74], 1, 2).astype(np.uint16) << 8
    codes = _codes("IQ2_S", indices, bits_of(b[:, 34:66]))
    return Parts(codes, f16_at(b, 0), sub_scales=_odd(fields(b[:, 74:82], 1, 4)))


def _iq3_xxs(b: U8) -> Parts:
    """d f16, 64 grid indices, 8 x u32 of 4 x 7 signs and a scale in the top 4 bits."""
    aux = u32_at(b, 66, 8)
    codes = _codes("IQ3_XXS", b[:, 2:66], _even_signs(_shifted(aux, 7, 4)))
    return Parts(codes, f16_at(b, 0), sub_scales=_odd(aux >> 28))


def _iq3_s(b: U8) -> Parts:
    """d f16, 64 low index bytes, 8 x 8 high index bits, 32 sign bytes, 4 x two scales."""
    indices = b[:, 2:66] | bits_of(b[:, 66:74]).astype(np.uint16) << 8
    codes = _codes("IQ3_S", indices, bits_of(b[:, 74:106]))
    return Parts(codes, f16_at(b, 0), sub_scales=_odd(fields(b[:, 106:110], 1, 4)))


def _iq1_s(b: U8) -> Parts:
    """d f16, 32 low index bytes, 8 x u16.

    The u16: 4 x three high index bits, three bits of scale, the sign of the delta.
    """
    aux = u16_at(b, 34, 8)
    indices = b[:, 2:34] | (_shifted(aux, 3, 4) & 7) << 8
    negative = np.repeat((aux >> 15).astype(np.uint8), 32, axis=1)
    return Parts(_codes("IQ1", indices, negative), f16_at(b, 0), sub_scales=_odd(aux >> 12 & 7))


def _iq1_m(b: U8) -> Parts:
    """32 low index bytes, 32 nibbles (three high index bits, the sign of the delta), 4 x u16.

    The u16: 4 scales of three bits; the top nibbles make up d f16, the lowest first.
    """
    high = fields(b[:, 32:48], 1, 4)
    indices = b[:, :32] | (high & 7).astype(np.uint16) << 8
    codes = _codes("IQ1", indices, np.repeat(high >> 3, 8, axis=1))
    words = u16_at(b, 48, 4)
    nibbles = words >> 12 << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(nibbles, axis=1, keepdims=True).view(np.float16)
    return Parts(codes, d, sub_scales=_odd(_shifted(words, 3, 4) & 7))


def _iq4_xs(b: U8) -> Parts:
    """d f16, u16 of 8 high pairs of the scales, 4 x two low nibbles, 8 x 16 bytes of codes.

    A scale is stored + 32.
    """
    low = fields(b[:, 4:8], 1, 4)
    high = (_shifted(u16_at(b, 2, 1), 2, 8) & 3).astype(np.uint8)
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    return Parts(fields(b[:, 8:136], 16, 4), f16_at(b, 0), sub_scales=scales)


UNPACK_IQ: dict[str, Unpack] = {
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ4_XS": _iq4_xs,
}
