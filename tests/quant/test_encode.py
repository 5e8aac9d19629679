"""Encoders: to the bit where ggml's reference is followed, within a derived error elsewhere."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from culet.errors import UsageError
from culet.quant.blocks import decode
from culet.quant.encode import _fit_with_min, encode
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME

K_QUANTS = ["Q4_K", "Q5_K", "Q6_K"]


def decoded(values: np.ndarray, name: str) -> np.ndarray:
    qtype = BY_NAME[name]
    return decode(QTensor("t", qtype, values.shape, encode(values, qtype)))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q8_0"])
def test_bytes_are_those_of_gguf(name: str) -> None:
    rng = np.random.default_rng(2)
    values = rng.standard_normal((64, 512), np.float32)
    values *= np.exp(rng.uniform(-12, 8, (64, 512))).astype(np.float32)
    values[3] = 0
    values[4, ::7] = -0.0
    values[5] = np.round(values[5])  # halves, on which rounding modes differ
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    assert np.array_equal(encode(values, BY_NAME[name]), theirs.view(np.uint8).reshape(64, -1))


def test_bf16_rounds_to_even_and_keeps_nan() -> None:
    bits = np.array([[0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001, 0xFFFFFFFF]])
    found = encode(bits.astype("<u4").view(np.float32), BY_NAME["BF16"]).view("<u2")
    assert found.tolist() == [[0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7FC0, 0xFFFF]]


@pytest.mark.parametrize(
    ("name", "group", "top"), [("Q4_K", 32, 15), ("Q5_K", 32, 31), ("Q6_K", 16, 63)]
)
@pytest.mark.parametrize("mean", [0.0, 3.0, -3.0])
def test_k_quants_beat_plain_rounding(name: str, group: int, top: int, mean: float) -> None:
    """The rms error is below that of rounding each group to `top` steps of its own range.

    Rounding to steps of width s has an error of s / sqrt(12) if values spread evenly within a step.
    The range is that of the group and 0, or for Q6_K, which has no mins, twice the largest
    magnitude. Stored scales are coarser than these (6 or 8 bits), which the search has to make up.
    """
    values = np.random.default_rng(3).standard_normal((32, 1024), np.float32) + np.float32(mean)
    groups = values.reshape(-1, group)
    if name == "Q6_K":
        span = 2 * np.abs(groups).max(axis=1)
    else:
        span = np.maximum(groups.max(axis=1), 0) - np.minimum(groups.min(axis=1), 0)
    plain = np.sqrt(((span / top) ** 2).mean() / 12)
    assert np.sqrt(((decoded(values, name) - values) ** 2).mean()) < plain


def squared_errors(
    groups: np.ndarray, scale: np.ndarray, minimum: np.ndarray, top: int
) -> np.ndarray:
    """Summed over groups [n, g] coded with their scales and mins [n]."""
    codes = np.clip(np.rint((groups + minimum[:, None]) / scale[:, None]), 0, top)
    return ((groups - (scale[:, None] * codes - minimum[:, None])) ** 2).sum(axis=1)


@pytest.mark.parametrize("top", [15, 31])
def test_scale_and_min_are_within_5_percent_of_an_exhaustive_search(top: int) -> None:
    """The least-squares min alone is worth 8 to 9 percent, so a search without it fails."""
    groups = np.random.default_rng(6).standard_normal((64, 32), np.float32)
    low, span = -groups.min(axis=1), np.ptp(groups, axis=1)
    best = np.full(len(groups), np.inf)
    for part in np.linspace(0.8, 1.1, 61):
        for shift in np.linspace(-0.1, 0.1, 41):
            error = squared_errors(groups, part * span / top, low + shift * span, top)
            best = np.minimum(best, error)
    found = squared_errors(groups, *_fit_with_min(groups, top), top)
    assert np.sqrt(found.sum()) < 1.05 * np.sqrt(best.sum())


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", *K_QUANTS])
@pytest.mark.parametrize("value", [1e-45, 1.2e-38, -1e-30, 2e-8])
def test_values_too_small_for_the_type_become_zero(name: str, value: float) -> None:
    assert not decoded(np.full((1, 256), value, np.float32), name).any()


@pytest.mark.parametrize("name", K_QUANTS)
def test_a_group_of_one_value_keeps_it(name: str) -> None:
    """The value is the group's scale times the outermost code, or its min: rounded to 6 bits of the
    largest of its block (7 for Q6_K), which is the value itself here, and to a normal f16."""
    for value in [0.0, 1.0, -1.0, 0.37, -60000.0]:
        values = np.full((1, 256), value, np.float32)
        assert np.abs(decoded(values, name) - values).max() <= abs(value) * 2.0**-10


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", *K_QUANTS])
@settings(max_examples=60, deadline=None)
@given(
    values=arrays(
        np.float32, (1, 256), elements=st.floats(-65504, 65504, width=32, allow_subnormal=True)
    )
)
def test_no_value_ends_further_off_than_the_range_of_its_block(
    name: str, values: np.ndarray
) -> None:
    """Whatever the search does, a value between the least and the largest (or 0) decodes to no more
    than that range away, half a step of the coarsest stored scale added (range / 15)."""
    span = float(max(values.max(), 0)) - float(min(values.min(), 0))
    result = decoded(values, name)
    assert np.isfinite(result).all()
    # 2^-24 * 15 * 63: a scale below f16's least number is stored as 0.
    assert np.abs(result - values).max() <= span * (1 + 1 / 15) + 2.0**-14


def test_rows_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(4).standard_normal((5, 2, 512))
    whole = encode(values, BY_NAME["Q4_K"])
    assert whole.shape == (5, 2, 288)
    monkeypatch.setattr("culet.quant.planes._SLICE_VALUES", 1024)
    assert np.array_equal(encode(values, BY_NAME["Q4_K"]), whole)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e5])
def test_values_outside_of_f16_are_refused(value: float) -> None:
    values = np.zeros((1, 256), np.float32)
    values[0, 9] = value
    with pytest.raises(UsageError, match="only values from -65504 to 65504 can be Q6_K"):
        encode(values, BY_NAME["Q6_K"])


def test_other_types_and_part_blocks_are_refused() -> None:
    values = np.zeros((1, 96), np.float32)
    with pytest.raises(UsageError, match="IQ2_S can't be encoded, only F32, "):
        encode(values, BY_NAME["IQ2_S"])
    with pytest.raises(UsageError, match="rows of 96 values can't be Q4_K.* 256"):
        encode(values, BY_NAME["Q4_K"])
