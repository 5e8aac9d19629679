"""PlaneForm: which integer codes and scales a ggml type becomes. A table, no arithmetic on weights.

The same table is stated in csrc/ggml_forms.cpp for the kernels; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CodeForm = Literal["linear", "codebook", "f32", "f16", "bf16", "f64"]
ScaleForm = Literal["none", "f16", "f16_times_int", "e8m0", "ue4m3"]
MinForm = Literal["none", "add", "subtract"]


@dataclass(frozen=True, slots=True)
class PlaneForm:
    """How the values of a type follow from its planes.

    scale(k) = 2^factor_log2 * f16_scales[k // f16_group] * sub_scales[k // sub_group]
    value(k) = scale(k) * value_of(codes[k])   + f16_mins[k // f16_group]               (min add)
                                               - f16_mins[..] * sub_mins[k // sub_group] (subtract)

    Absent parts count as 1 (scales) or 0 (mins). All products are exact in float32 (11 bits of f16,
    at most 7 of a sub-scale and 6 of a code), so only adding a min rounds, and re-encoding loses
    nothing. Plain floating-point types have codes that are the values.

    Attributes:
        name: the ggml type.
        code: linear (code - offset), codebook (codebook[code]) or a floating-point type.
        code_bits: 8, 6 (stored as 4 + 2), 5 (4 + 1), 4, 3 (2 + 1) or 2; 0 for floating point.
        offset: of linear codes.
        codebook: 2^code_bits values; codes that never occur hold 0.
        scale: f16 (one per 32 values; coarser ones are replicated), f16_times_int (f16 per 256,
            signed integers per sub_group), e8m0 (2^(e - 127 + factor_log2)) or ue4m3 (a UE4M3
            number times 2^factor_log2).
        f16_group: values per f16 scale and f16 min; 0 without.
        sub_group: values per sub-scale and sub-min; 0 without.
        min: none, add (f16 per 32) or subtract (f16 per 256 times an integer per sub_group).
        factor_log2: power of two on the scale, which keeps the codebook integer.
    """

    name: str
    code: CodeForm
    code_bits: int = 0
    offset: int = 0
    codebook: tuple[int, ...] = ()
    scale: ScaleForm = "none"
    f16_group: int = 0
    sub_group: int = 0
    min: MinForm = "none"
    factor_log2: int = 0


# Magnitude (low two bits) and sign (bit 2) of IQ2's vector codebooks.
_IQ2 = (8, 25, 43, 0, -8, -25, -43, 0)
# IQ1's digit - 1 in eighths, plus 1 eighth, or minus 1 where bit 2 is set.
_IQ1 = (-7, 1, 9, 0, -9, -1, 7, 0)
# Magnitude (low three bits) and sign (bit 3) of IQ3's vector codebooks.
_IQ3_XXS = (4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62)
_IQ3_S = (1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15)
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# E2M1, doubled so that all are integers; bit 3 is the sign.
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _per_32(name: str, bits: int, offset: int, minimum: MinForm = "none") -> PlaneForm:
    return PlaneForm(name, "linear", bits, offset, scale="f16", f16_group=32, min=minimum)


def _k(name: str, bits: int, offset: int, sub_group: int, minimum: MinForm = "none") -> PlaneForm:
    form: ScaleForm = "f16_times_int"
    return PlaneForm(name, "linear", bits, offset, (), form, 256, sub_group, minimum)


def _iq(name: str, codebook: tuple[int, ...], sub_group: int, factor_log2: int) -> PlaneForm:
    bits = len(codebook).bit_length() - 1
    form: ScaleForm = "f16_times_int"
    return PlaneForm(name, "codebook", bits, 0, codebook, form, 256, sub_group, "none", factor_log2)


_ROWS = [
    PlaneForm("F32", "f32"),
    PlaneForm("F16", "f16"),
    _per_32("Q4_0", 4, 8),
    _per_32("Q4_1", 4, 0, "add"),
    _per_32("Q5_0", 5, 16),
    _per_32("Q5_1", 5, 0, "add"),
    _per_32("Q8_0", 8, 128),
    _k("Q2_K", 2, 0, 16, "subtract"),
    _k("Q3_K", 3, 4, 16),
    _k("Q4_K", 4, 0, 32, "subtract"),
    _k("Q5_K", 5, 0, 32, "subtract"),
    _k("Q6_K", 6, 32, 16),
    _iq("IQ2_XXS", _IQ2, 32, -3),
    _iq("IQ2_XS", _IQ2, 16, -3),
    _iq("IQ3_XXS", _IQ3_XXS, 32, -2),
    _iq("IQ1_S", _IQ1, 32, -3),
    PlaneForm("IQ4_NL", "codebook", 4, 0, _IQ4, "f16", 32),
    _iq("IQ3_S", _IQ3_S, 32, 0),
    _iq("IQ2_S", _IQ2, 16, -3),
    _iq("IQ4_XS", _IQ4, 32, 0),
    PlaneForm("F64", "f64"),
    _iq("IQ1_M", _IQ1, 16, -3),
    PlaneForm("BF16", "bf16"),
    _per_32("TQ1_0", 2, 1),
    _per_32("TQ2_0", 2, 1),
    PlaneForm("MXFP4", "codebook", 4, 0, _E2M1, "e8m0", 0, 32, factor_log2=-1),
    PlaneForm("NVFP4", "codebook", 4, 0, _E2M1, "ue4m3", 0, 16, factor_log2=-1),
    _per_32("Q1_0", 2, 1),
    _per_32("Q2_0", 2, 1),
]

# By name of the ggml type. Integer types have no form: they are never weights.
FORMS: dict[str, PlaneForm] = {form.name: form for form in _ROWS}
