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
]

BY_ID: dict[int, QuantType] = {t.ggml_id: t for t in _ROWS}
BY_NAME: dict[str, QuantType] = {t.name: t for t in _ROWS}

_REFUSED: dict[int, str] = {
    4: "Q4_2, removed from ggml",
    5: "Q4_3, removed from ggml",
    9: "Q8_1, an activation format that files never hold",
    15: "Q8_K, an activation format that files never hold",
    31: "Q4_0_4_4, removed from ggml",
    32: "Q4_0_4_8, removed from ggml",
    33: "Q4_0_8_8, removed from ggml",
    36: "IQ4_NL_4_4, removed from ggml",
    37: "IQ4_NL_4_8, removed from ggml",
    38: "IQ4_NL_8_8, removed from ggml",
}


def quant_type(ggml_id: int, tensor_name: str) -> QuantType:
    """The type with this id; `UnsupportedModelError` names the tensor, the id and what it was."""
    found = BY_ID.get(ggml_id)
    if found is None:
        what = _REFUSED.get(ggml_id, "not a ggml type")
        raise UnsupportedModelError(f"tensor {tensor_name}: type id {ggml_id} ({what})")
    return found
