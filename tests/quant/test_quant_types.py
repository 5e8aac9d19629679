"""The type table against the gguf package, and the refusal of ids that it lacks."""

from __future__ import annotations

import gguf
import pytest

from culet.errors import ModelFileError, UnsupportedModelError
from culet.quant.forms import FORMS
from culet.quant.types import BY_ID, BY_NAME, quant_type

# Types that the package lists but no file holds.
ACTIVATION_TYPES = {"Q8_1", "Q8_K"}


@pytest.mark.parametrize(
    "theirs", [t for t in gguf.GGMLQuantizationType if t.name not in ACTIVATION_TYPES]
)
def test_id_and_sizes_agree_with_gguf(theirs: gguf.GGMLQuantizationType) -> None:
    ours = BY_NAME[theirs.name]
    assert ours.ggml_id == theirs.value
    assert (ours.block_values, ours.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]
    assert quant_type(theirs.value, "t") is ours


def test_every_type_that_can_be_a_weight_has_a_plane_form() -> None:
    assert set(FORMS) == {t.name for t in BY_ID.values() if not t.is_integer}
    assert all(name == form.name for name, form in FORMS.items())


@pytest.mark.parametrize(
    ("ggml_id", "what"),
    [
        (4, "Q4_2"),
        (5, "Q4_3"),
        (9, "Q8_1"),
        (15, "Q8_K"),
        (31, "Q4_0_4_4"),
        (36, "I2_S"),
        (38, "IQ4_NL_8_8"),
        (137, "IQ2_K"),
        (144, "IQ4_KS"),
        (158, "IQ1_KT"),
        (202, "Q4_0_R8"),
        (399, "Q8_K_R8"),
        (43, "not a ggml type"),
        (-1, "not a ggml type"),
        (1 << 31, "not a ggml type"),
    ],
)
def test_other_ids_are_refused_by_id_and_name(ggml_id: int, what: str) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        quant_type(ggml_id, "blk.0.ffn_up.weight")
    message = str(refusal.value)
    assert "blk.0.ffn_up.weight" in message
    assert str(ggml_id) in message
    assert what in message


def test_all_fork_ids_from_137_to_158_are_named() -> None:
    for ggml_id in range(137, 159):
        with pytest.raises(UnsupportedModelError, match=r"\w+, a type of ik_llama.cpp only"):
            quant_type(ggml_id, "t")


def test_row_bytes() -> None:
    assert BY_NAME["Q6_K"].row_bytes(512) == 420
    assert BY_NAME["F32"].row_bytes(3) == 12
    with pytest.raises(ModelFileError, match=r"100 values can't be Q4_0.* 32 values"):
        BY_NAME["Q4_0"].row_bytes(100)
