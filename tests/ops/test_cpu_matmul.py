"""Products with every weight type, at every ISA level, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_cases import (
    LEVELS,
    bf16_rounded,
    cpu_ops,
    decoded,
    int8_activations,
    multiply,
    random_weight,
    summation_bound,
)

from culet.quant.types import BY_NAME
from support.stored_tensors import CODED_TYPES, WEIGHT_TYPES

NUM_ROWS = 37  # two whole tiles of 16 and a part of one


def num_cols(name: str) -> int:
    """Not a whole number of the kernels' units, where the type allows."""
    return {1: 104, 32: 160, 64: 192, 128: 384}.get(BY_NAME[name].block_values, 768)


def activations(num_rows: int, cols: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng([seed, cols])
    x = rng.standard_normal((num_rows, cols)).astype(np.float32)
    x[:, cols // 2] *= 30.0  # an outlier channel
    x[num_rows // 2, :32] = 0.0  # a group without any value
    return x


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_fast_product(name: str, level: str) -> None:
    ops = cpu_ops(level)
    cols = num_cols(name)
    source = random_weight(name, NUM_ROWS, cols)
    weight = ops.weight(source)
    values = decoded(ops, weight, source.shape)
    x = activations(5, cols)
    if name in CODED_TYPES:
        expected, bound = coded_product(x, values)
    else:
        is_rounded = name == "BF16" and level == "avx512bf16"
        encoded = (bf16_rounded(x) if is_rounded else x).astype(np.float64)
        expected = encoded @ values.astype(np.float64).T
        bound = summation_bound(encoded, values, cols + 2)
    error = np.abs(multiply(ops, x, weight, NUM_ROWS) - expected)
    assert (error <= bound).all(), (error / bound).max()


def coded_product(x: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product with int8 activations, and a bound of what float32 may differ from it."""
    # Per group of 32: exact integer sums, five roundings and those of the scale, then as many
    # additions as there are groups.
    encoded, roundings = int8_activations(x), x.shape[1] // 32 + 8
    # Offsets and mins are subtracted as sums of their own, so the terms that round are as
    # large as the largest value of a group, not as the value itself.
    terms = np.abs(encoded) @ np.full_like(values, np.abs(values).max()).T.astype(np.float64)
    return encoded @ values.astype(np.float64).T, 4 * terms * roundings * 2.0**-24


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CODED_TYPES)
def test_largest_codes_and_activations_do_not_overflow(name: str, level: str, sign: int) -> None:
    ops = cpu_ops(level)
    cols = num_cols(name)
    source = random_weight(name, NUM_ROWS, cols, lowest_byte=255)
    weight = ops.weight(source)
    x = np.full((5, cols), sign, np.float32)
    expected, bound = coded_product(x, decoded(ops, weight, source.shape))
    error = np.abs(multiply(ops, x, weight, NUM_ROWS) - expected)
    assert (error <= bound).all(), (error / bound).max()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_exact_product(name: str, level: str) -> None:
    ops = cpu_ops(level, precision="exact")
    cols = num_cols(name)
    source = random_weight(name, NUM_ROWS, cols)
    weight = ops.weight(source)
    values = decoded(ops, weight, source.shape)
    x = activations(3, cols)
    error = np.abs(
        multiply(ops, x, weight, NUM_ROWS) - x.astype(np.float64) @ values.T.astype(float)
    )
    assert (error <= summation_bound(x, values, cols + 2)).all()


@pytest.mark.parametrize("name", WEIGHT_TYPES)
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_row_count_changes_nothing(name: str, precision: str) -> None:
    ops = cpu_ops(precision=precision)  # type: ignore[arg-type]
    cols = num_cols(name)
    weight = ops.weight(random_weight(name, NUM_ROWS, cols))
    x = activations(17, cols)
    alone = np.concatenate([multiply(ops, x[i : i + 1], weight, NUM_ROWS) for i in range(17)])
    for count in range(2, 18):
        np.testing.assert_array_equal(multiply(ops, x[:count], weight, NUM_ROWS), alone[:count])


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "BF16", "F32"])
def test_threads_change_nothing(name: str) -> None:
    cols = 512
    source = random_weight(name, 1000, cols)
    x = activations(3, cols)
    results = []
    for threads in (1, 2, 3):
        ops = cpu_ops(threads=threads)
        results.append(multiply(ops, x, ops.weight(source), 1000))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("name", [n for n in WEIGHT_TYPES if n != "BF16"])
def test_levels_agree_bit_for_bit(name: str) -> None:
    cols = num_cols(name)
    source = random_weight(name, NUM_ROWS, cols)
    x = activations(9, cols)
    results = {}
    for level in LEVELS:
        ops = cpu_ops(level)
        results[level] = multiply(ops, x, ops.weight(source), NUM_ROWS)
    for level in LEVELS[1:]:
        np.testing.assert_array_equal(results[level], results[LEVELS[0]], err_msg=level)
