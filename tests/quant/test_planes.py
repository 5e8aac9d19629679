"""Planes: no value is lost by the re-encoding, and codes fit the bits that their form promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from culet.errors import ModelFileError
from culet.quant.blocks import decode
from culet.quant.forms import FORMS
from culet.quant.planes import planes_to_float, to_planes
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME
from support.stored_tensors import (
    CODED_TYPES,
    WEIGHT_TYPES,
    assert_same_bits,
    edge_tensor,
    random_tensor,
)


@pytest.mark.parametrize("name", WEIGHT_TYPES)
@pytest.mark.parametrize("make", [random_tensor, edge_tensor])
def test_planes_give_exactly_the_decoded_values(name: str, make: Callable[[str], QTensor]) -> None:
    tensor = make(name)
    assert_same_bits(planes_to_float(to_planes(tensor)), decode(tensor))


@pytest.mark.parametrize("name", CODED_TYPES)
def test_parts_have_the_shapes_and_ranges_of_the_form(name: str) -> None:
    tensor = random_tensor(name, num_rows=40)
    planes = to_planes(tensor)
    form = planes.form
    assert form is FORMS[name]
    assert planes.codes.max() < 1 << form.code_bits
    if form.code == "codebook":
        assert len(form.codebook) == 1 << form.code_bits
        # Only the codes that no block can hold may stand for 0 beside others of the same value.
        used = np.unique(planes.codes)
        assert {form.codebook[code] for code in used} == set(form.codebook) - (
            {0} if form.scale == "f16_times_int" else set()
        )
    per_f16 = (tensor.num_rows, tensor.row_values // form.f16_group) if form.f16_group else None
    per_sub = (tensor.num_rows, tensor.row_values // form.sub_group) if form.sub_group else None
    for part, shape, wanted in [
        (planes.f16_scales, per_f16, form.f16_group > 0),
        (planes.f16_mins, per_f16, form.min != "none"),
        (planes.sub_scales, per_sub, form.sub_group > 0),
        (planes.sub_mins, per_sub, form.min == "subtract"),
    ]:
        assert (part is not None) == wanted
        assert part is None or part.shape == shape


@pytest.mark.parametrize("name", CODED_TYPES)
def test_scale_times_code_is_exact_in_float32(name: str) -> None:
    """What the forms rest on: only adding a min can round, so factors may be applied in any order.

    Bits of the largest odd factors: 11 of an f16, and those of sub-scales and codes of the form.
    """
    form = FORMS[name]

    def bits(values: list[int]) -> int:
        return max((v // (v & -v)).bit_length() for v in map(abs, values) if v)

    top = 1 << form.code_bits
    codes = list(form.codebook) or [code - form.offset for code in range(top)]
    sub_scales = {"Q4_K": 63, "Q5_K": 63, "Q2_K": 15, "Q3_K": 31, "Q6_K": 127, "IQ4_XS": 31}
    factor = 31 if form.scale == "f16_times_int" else 1
    if form.scale == "f16_times_int":
        factor = sub_scales.get(name, 31)
    assert 11 + factor.bit_length() + bits(codes) <= 24


def test_float32_values_that_are_bf16_become_bf16() -> None:
    halves = random_tensor("BF16").data.view("<u2")
    values = (halves.astype(np.uint32) << 16).view(np.float32)
    tensor = QTensor("t", BY_NAME["F32"], values.shape, values.view(np.uint8))
    planes = to_planes(tensor)
    assert planes.form.name == "BF16"
    assert np.array_equal(planes.codes, halves)
    assert_same_bits(planes_to_float(planes), values)


def test_one_value_that_is_not_bf16_keeps_float32() -> None:
    values = np.ones((2, 8), np.float32)
    values[1, 5] = np.nextafter(np.float32(1), np.float32(2))
    tensor = QTensor("t", BY_NAME["F32"], values.shape, values.view(np.uint8))
    planes = to_planes(tensor)
    assert planes.form.name == "F32"
    assert_same_bits(planes_to_float(planes), values)


def test_f64_becomes_float32_or_bf16() -> None:
    third = np.full((1, 3), 1 / 3, np.float32)
    for values, form in [(third, "F32"), (np.ones((1, 3), np.float32), "BF16")]:
        data = values.astype("<f8").view(np.uint8)
        assert to_planes(QTensor("t", BY_NAME["F64"], values.shape, data)).form.name == form
    with pytest.raises(ModelFileError, match="tensor t is F64"):
        data = np.full((1, 3), 1 / 3).view(np.uint8)
        to_planes(QTensor("t", BY_NAME["F64"], (1, 3), data))


def test_slices_join_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = replace(random_tensor("Q5_K", num_rows=7), scale=np.array([0.7], np.float32))
    whole = decode(tensor)
    monkeypatch.setattr("culet.quant.planes._SLICE_VALUES", 2 * tensor.row_values)
    planes = to_planes(tensor)
    assert planes.codes.shape == tensor.shape
    assert_same_bits(planes_to_float(planes), whole)
