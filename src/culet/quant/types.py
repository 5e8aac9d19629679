"""The ggml tensor types: one row per type that a file can hold, and the ids that are refused.

Knows names, ids and block sizes; the codecs are in `blocks`.
Source of ids and sizes: ggml.h (enum ggml_type) and ggml-common.h of llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from culet.errors import ModelFileError, UnsupportedModelError


@dataclass(frozen=True, slots=True)
class QuantType:
    """One ggml type.

    Attributes:
        name: ggml's name, upper case.
        ggml_id: the number that a GGUF file stores.
        block_values: values a block holds along a row.
        block_bytes: bytes of one block.
        is_integer: a plain integer type (indices and orders, never a weight).
    """

    name: str
    ggml_id: int
    block_values: int
    block_bytes: int
    is_integer: bool = False

    def row_bytes(self, num_values: int) -> int:
        """Bytes of a row of `num_values` values; `ModelFileError` unless whole blocks fit."""
        if num_values % self.block_values:
            raise ModelFileError(
                f"a row of {num_values} values can't be {self.name}: "
                f"its blocks hold {self.block_values} values"
            )
        return num_values // self.block_values * self.block_bytes


_ROWS = [
    QuantType("F32", 0, 1, 4),
    QuantType("F16", 1, 1, 2),
    QuantType("Q4_0", 2, 32, 18),
    QuantType("Q4_1", 3, 32, 20),
    QuantType("Q5_0", 6, 32, 22),
    QuantType("Q5_1", 7, 32, 24),
    QuantType("Q8_0", 8, 32, 34),
    QuantType("Q2_K", 10, 256, 84),
    QuantType("Q3_K", 11, 256, 110),
    QuantType("Q4_K", 12, 256, 144),
    QuantType("Q5_K", 13, 256, 176),
    QuantType("Q6_K", 14, 256, 210),
    QuantType("IQ2_XXS", 16, 256, 66),
    QuantType("IQ2_XS", 17, 256, 74),
    QuantType("IQ3_XXS", 18, 256, 98),
    QuantType("IQ1_S", 19, 256, 50),
    QuantType("IQ4_NL", 20, 32, 18),
    QuantType("IQ3_S", 21, 256, 110),
    QuantType("IQ2_S", 22, 256, 82),
    QuantType("IQ4_XS", 23, 256, 136),
    QuantType("I8", 24, 1, 1, is_integer=True),
    QuantType("I16", 25, 1, 2, is_integer=True),
    QuantType("I32", 26, 1, 4, is_integer=True),
    QuantType("I64", 27, 1, 8, is_integer=True),
    QuantType("F64", 28, 1, 8),
    QuantType("IQ1_M", 29, 256, 56),
    QuantType("BF16", 30, 1, 2),
    QuantType("TQ1_0", 34, 256, 54),
    QuantType("TQ2_0", 35, 256, 66),
    QuantType("MXFP4", 39, 32, 17),
    QuantType("NVFP4", 40, 64, 36),
    QuantType("Q1_0", 41, 128, 18),
    QuantType("Q2_0", 42, 64, 18),
]

BY_ID: dict[int, QuantType] = {t.ggml_id: t for t in _ROWS}
BY_NAME: dict[str, QuantType] = {t.name: t for t in _ROWS}

_REMOVED = "removed from ggml"
_ACTIVATIONS = "an activation format that files never hold"
_FORK = "a type of ik_llama.cpp only"

_REFUSED: dict[int, str] = {
    4: f"Q4_2, {_REMOVED}",
    5: f"Q4_3, {_REMOVED}",
    9: f"Q8_1, {_ACTIVATIONS}",
    15: f"Q8_K, {_ACTIVATIONS}",
    31: f"Q4_0_4_4, {_REMOVED}",
    32: f"Q4_0_4_8, {_REMOVED}",
    33: f"Q4_0_8_8, {_REMOVED}",
    36: f"IQ4_NL_4_4, {_REMOVED}, or I2_S of BitNet forks",
    37: f"IQ4_NL_4_8, {_REMOVED}",
    38: f"IQ4_NL_8_8, {_REMOVED}",
}

# Source: enum ggml_type of ik_llama.cpp's ggml.h, as far as its ids differ from ggml's.
_IK_LLAMA: dict[int, str] = {
    98: "Q8_0_X4",
    99: "Q8_1_X4",
    133: "Q6_0",
    134: "IQ1_BN",
    135: "IQ2_BN",
    136: "Q8_K64",
    137: "IQ2_K",
    138: "IQ3_K",
    139: "IQ4_K",
    140: "IQ5_K",
    141: "IQ6_K",
    142: "IQ2_TN",
    143: "IQ1_TN",
    144: "IQ4_KS",
    145: "IQ2_KS",
    146: "IQ4_KSS",
    147: "Q8_K16",
    148: "Q8_K32",
    149: "Q8_KR8",
    150: "Q8_K128",
    151: "Q8_KV",
    152: "IQ5_KS",
    153: "IQ2_KT",
    154: "IQ3_KT",
    155: "IQ4_KT",
    156: "IQ3_KS",
    157: "IQ2_KL",
    158: "IQ1_KT",
    202: "Q4_0_R8",
    206: "Q5_0_R4",
    208: "Q8_0_R8",
    210: "Q2_K_R4",
    211: "Q3_K_R4",
    212: "Q4_K_R4",
    213: "Q5_K_R4",
    214: "Q6_K_R4",
    216: "IQ2_XXS_R4",
    217: "IQ2_XS_R4",
    218: "IQ3_XXS_R4",
    219: "IQ1_S_R4",
    220: "IQ4_NL_R4",
    221: "IQ3_S_R4",
    222: "IQ2_S_R4",
    223: "IQ4_XS_R8",
    229: "IQ1_M_R4",
    230: "BF16_R16",
    233: "Q6_0_R4",
    335: "IQ2_BN_R4",
    337: "IQ2_K_R4",
    338: "IQ3_K_R4",
    339: "IQ4_K_R4",
    340: "IQ5_K_R4",
    344: "IQ4_KS_R4",
    352: "IQ5_KS_R4",
    398: "Q8_KV_R8",
    399: "Q8_K_R8",
}


def quant_type(ggml_id: int, tensor_name: str) -> QuantType:
    """The type with this id; `UnsupportedModelError` names the tensor, the id and what it was."""
    found = BY_ID.get(ggml_id)
    if found is None:
        fork = _IK_LLAMA.get(ggml_id)
        what = f"{fork}, {_FORK}" if fork else _REFUSED.get(ggml_id, "not a ggml type")
        raise UnsupportedModelError(
            f"tensor {tensor_name} has type id {ggml_id} ({what}), which culet does not read"
        )
    return found
