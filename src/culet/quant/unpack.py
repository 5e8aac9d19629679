"""Blocks of one type -> codes and scales, for the types of 32 to 256 values without sub-scales.

Knows bit layouts, one function per ggml type; the values that codes stand for are in `forms`.
Functions take uint8 [n, block_bytes] and return Parts with n rows, one per block.
Layouts: the block structs of llama.cpp's ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The plane content of n blocks; see `forms.PlaneForm` for what the parts mean.

    Attributes:
        codes: uint8 [n, block_values].
        f16_scales, f16_mins: float16 [n, block_values / f16_group].
        sub_scales: int8, or the bytes of E8M0 and UE4M3 scales, [n, block_values / sub_group].
        sub_mins: uint8 [n, block_values / sub_group].
    """

    codes: U8
    f16_scales: NDArray[np.float16] | None = None
    f16_mins: NDArray[np.float16] | None = None
    sub_scales: NDArray[np.int8] | U8 | None = None
    sub_mins: U8 | None = None


Unpack = Callable[[U8], Parts]


def f16_at(blocks: U8, offset: int) -> NDArray[np.float16]:
    """float16 [n, 1] stored at a byte offset of every block."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2")


def u16_at(blocks: U8, offset: int, count: int) -> NDArray[np.uint16]:
    """uint16 [n, count] stored from a byte offset of every block."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2 * count]).view("<u2")


def u32_at(blocks: U8, offset: int, count: int) -> NDArray[np.uint32]:
    """uint32 [n, count] stored from a byte offset of every block."""
    return np.ascontiguousarray(blocks[:, offset : offset + 4 * count]).view("<u4")


def fields(packed: U8, run: int, bits: int) -> U8:
    """The bit fields of every `run` bytes: the lowest fields of the run, then the next, and so on.

    [n, m] -> [n, m * 8 / bits].
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = packed.reshape(len(packed), -1, 1, run)
    return ((runs >> shifts) & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def bits_of(packed: U8) -> U8:
    """[n, m] -> [n, 8 m], the lowest bit of each byte first."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def joined(low: U8, high: U8, shift: int) -> U8:
    """Codes whose bits from `shift` up are `high`."""
    return low | high << np.uint8(shift)


def _q4_0(b: U8) -> Parts:
    """d f16, 16 x two codes. Also IQ4_NL, which differs by its codebook."""
    return Parts(fields(b[:, 2:18], 16, 4), f16_at(b, 0))


def _q4_1(b: U8) -> Parts:
    """d f16, min f16, 16 x two codes."""
    return Parts(fields(b[:, 4:20], 16, 4), f16_at(b, 0), f16_at(b, 2))


def _q5_0(b: U8) -> Parts:
    """d f16, 32 high bits, 16 x two low nibbles."""
    return Parts(joined(fields(b[:, 6:22], 16, 4), bits_of(b[:, 2:6]), 4), f16_at(b, 0))


def _q5_1(b: U8) -> Parts:
    """d f16, min f16, 32 high bits, 16 x two low nibbles."""
    codes = joined(fields(b[:, 8:24], 16, 4), bits_of(b[:, 4:8]), 4)
    return Parts(codes, f16_at(b, 0), f16_at(b, 2))


def _q8_0(b: U8) -> Parts:
    """d f16, 32 x int8; the code is the value + 128."""
    return Parts(b[:, 2:34] ^ np.uint8(0x80), f16_at(b, 0))


def _q1_0(b: U8) -> Parts:
    """d f16, 128 bits; a set bit is +d (code 2), a clear one -d (code 0)."""
    return Parts(bits_of(b[:, 2:18]) * np.uint8(2), np.repeat(f16_at(b, 0), 4, axis=1))


def _q2_0(b: U8) -> Parts:
    """d f16, 16 x four consecutive codes."""
    return Parts(fields(b[:, 2:18], 1, 2), np.repeat(f16_at(b, 0), 2, axis=1))


def _ternary_digits(packed: U8, digits: int) -> U8:
    """The first base-3 digits of each byte b, read as the fraction b / 256; digit-major.

    Multiplying the fraction by 3 moves its next digit above the point.
    """
    powers = (3 ** np.arange(digits)).astype(np.uint8)[:, None]
    fractions = packed[:, None, :] * powers  # modulo 256: digits already read drop out
    return (fractions.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(packed), -1)


def _tq1_0(b: U8) -> Parts:
    """32 bytes of 5 digits, 16 bytes of 5 digits, 4 bytes of 4 digits, d f16."""
    runs = [_ternary_digits(b[:, :32], 5), _ternary_digits(b[:, 32:48], 5)]
    codes = np.concatenate([*runs, _ternary_digits(b[:, 48:52], 4)], axis=1)
    return Parts(codes, np.repeat(f16_at(b, 52), 8, axis=1))


def _tq2_0(b: U8) -> Parts:
    """Two halves of 32 bytes of four codes, d f16."""
    return Parts(fields(b[:, :64], 32, 2), np.repeat(f16_at(b, 64), 8, axis=1))


def _mxfp4(b: U8) -> Parts:
    """E8M0 scale, 16 x two E2M1 codes."""
    return Parts(fields(b[:, 1:17], 16, 4), sub_scales=b[:, :1])


def _nvfp4(b: U8) -> Parts:
    """4 x UE4M3 scale, 4 x 8 bytes of two E2M1 codes."""
    return Parts(fields(b[:, 4:36], 8, 4), sub_scales=b[:, :4])


UNPACK: dict[str, Unpack] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
    "IQ4_NL": _q4_0,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}
