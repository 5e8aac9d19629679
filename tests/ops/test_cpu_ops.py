"""Every op but attention, against the reference backend or float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_cases import LEVELS, cpu_ops, random_weight

from culet.ops.cpu.backend import CpuOps
from culet.ops.interface import Experts
from culet.ops.reference import ReferenceOps
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME

EPS = 1e-6


@pytest.fixture(params=LEVELS)
def exact(request: pytest.FixtureRequest) -> CpuOps:
    """The float32 path of every level."""
    return cpu_ops(request.param, precision="exact")


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def assert_close(found: np.ndarray, expected: np.ndarray, num_roundings: int) -> None:
    """Relative to the largest value: both sides pass `num_roundings` roundings at most."""
    scale = np.abs(expected).max()
    error = np.abs(found.astype(np.float64) - expected).max()
    assert error <= 2 * num_roundings * 2.0**-24 * scale, error / scale * 2.0**24


def both(exact: CpuOps) -> list[tuple[Any, Any]]:
    reference = ReferenceOps()
    return [(exact, exact.weight), (reference, reference.weight)]


@pytest.mark.parametrize("dim", [8, 40, 256])
def test_rms_norm(exact: CpuOps, dim: int) -> None:
    x, norm = normal(3, dim), normal(dim, seed=1)
    out = np.empty_like(x)
    exact.rms_norm(out, x, norm, EPS)
    exact.sync()
    mean = np.square(x, dtype=np.float64).mean(axis=1, keepdims=True)
    expected = x / np.sqrt(mean + EPS) * norm
    # A sum over dim lanes of 16, the root, the quotient and two products.
    error = np.abs(out - expected) / np.abs(expected)
    assert error.max() <= (dim / 16 + 4 + 8) * 2.0**-24


def test_embed_scales_rows(exact: CpuOps) -> None:
    source = random_weight("Q6_K", 33, 256)
    ids = np.array([32, 0, 7, 7], np.int32)
    results = []
    for ops, weight in both(exact):
        out = np.empty((4, 256), np.float32)
        ops.embed(out, weight(source), ids, 16.0)
        ops.sync()
        results.append(out)
    np.testing.assert_array_equal(results[0], results[1])


def test_gather_and_scatter(exact: CpuOps) -> None:
    x = normal(5, 7)
    rows = np.array([4, 0], np.int32)
    out = np.empty((2, 7), np.float32)
    target = np.zeros((5, 7), np.float32)
    exact.gather_rows(out, x, rows)
    exact.scatter_rows(target, out, rows)
    exact.scale(out, 0.5)
    exact.sync()
    np.testing.assert_array_equal(out, x[rows] * np.float32(0.5))
    np.testing.assert_array_equal(target[rows], x[rows])
    assert not target[1:4].any()


def test_rope_table_is_correctly_rounded_sin_and_cos(exact: CpuOps) -> None:
    positions = np.array([0, 1, 511, 4097, 131071, 262143], np.int32)
    frequencies = np.append(10000.0 ** -(np.arange(31) / 31), 0.0).astype(np.float32)
    cos, sin = np.empty((6, 32), np.float32), np.empty((6, 32), np.float32)
    exact.rope_table(cos, sin, positions, frequencies)
    exact.sync()
    angle = (positions.astype(np.float32)[:, None] * frequencies).astype(np.float64)
    np.testing.assert_array_equal(cos, np.cos(angle).astype(np.float32))
    np.testing.assert_array_equal(sin, np.sin(angle).astype(np.float32))


@pytest.mark.parametrize("name", ["Q4_0", "BF16", "F32"])
def test_linear_norm_add(exact: CpuOps, name: str) -> None:
    source = random_weight(name, 40, 96, seed=2)
    a, norm = normal(3, 96), normal(40, seed=1)
    for has_norm in (True, False):
        results = []
        for ops, weight in both(exact):
            x = normal(3, 40, seed=3)
            ops.linear_norm_add(x, a, weight(source), norm if has_norm else None, EPS)
            ops.sync()
            results.append(x)
        assert_close(results[0], results[1], 96 + 40)


def test_norm_linear_of_several_weights(exact: CpuOps) -> None:
    sources = [random_weight(n, r, 256) for n, r in [("Q4_K", 48), ("Q6_K", 16), ("F16", 5)]]
    x, norm = normal(3, 256), normal(256, seed=1)
    results = []
    for ops, weight in both(exact):
        outs = [np.empty((3, s.shape[0]), np.float32) for s in sources]
        ops.norm_linear(outs, x, norm, EPS, [weight(s) for s in sources])
        ops.sync()
        results.append(outs)
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected, 256 + 20)


def test_gate_up(exact: CpuOps) -> None:
    gate, up = random_weight("Q4_0", 72, 96, seed=1), random_weight("Q5_1", 72, 96, seed=2)
    x, norm = normal(9, 96), normal(96, seed=1)
    results = []
    for ops, weight in both(exact):
        out = np.empty((9, 72), np.float32)
        ops.gate_up(out, x, norm, EPS, weight(gate), weight(up))
        ops.sync()
        results.append(out)
    # gelu's slope is below 1.13; products of two sums.
    assert_close(results[0], results[1], 3 * 96 + 30)


def test_gelu_keeps_relative_accuracy_in_its_tail(exact: CpuOps) -> None:
    """0.5 (1 + tanh u) cancels for negative x; the kernel must not."""
    values = np.linspace(-6, 6, 101, dtype=np.float32)[:, None]  # gates of an input of 1
    gate, up = exact.weight(float_tensor(values)), exact.weight(float_tensor(np.ones_like(values)))
    one = np.ones((1, 1), np.float32)
    out = np.empty((1, 101), np.float32)
    exact.gate_up(out, one, one[0], 0.0, gate, up)
    exact.sync()
    v = values[:, 0].astype(np.float64)
    u = np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)
    # 2u reaches 25 and has four roundings, which e^-2u turns into a relative error.
    np.testing.assert_allclose(out[0], v / (1 + np.exp(-2 * u)), rtol=(25 * 5 + 8) * 2.0**-24)


def float_tensor(values: np.ndarray) -> QTensor:
    return QTensor("w", BY_NAME["F32"], values.shape, values.view(np.uint8))


def test_per_layer_step_reads_strided_rows(exact: CpuOps) -> None:
    gate, projection = random_weight("F32", 16, 48), random_weight("F32", 48, 16)
    norm = normal(48, seed=1)
    inputs = normal(3, 4, 16, seed=2)
    results = []
    for ops, weight in both(exact):
        x = normal(3, 48, seed=3)
        ops.per_layer_step(x, inputs[:, 2, :], weight(gate), weight(projection), norm, EPS)
        ops.sync()
        results.append(x)
    assert_close(results[0], results[1], 300)


@pytest.mark.parametrize("table_type", ["Q6_K", "Q8_0", "F16"])
def test_per_layer_inputs(exact: CpuOps, table_type: str) -> None:
    """Slices inside a block of the table, too: 64 values a layer, Q6_K blocks of 256."""
    table, projection = random_weight(table_type, 11, 768), random_weight("F32", 5 * 64, 40)
    x, norm = normal(3, 40), normal(64, seed=1)
    ids = np.array([10, 0, 3], np.int32)
    results = []
    for ops, weight in both(exact):
        out = np.empty((3, 5, 64), np.float32)
        rows = ops.table(table, "disk")
        ops.per_layer_inputs(out, rows, ids, 3, x, weight(projection), norm, EPS)
        ops.sync()
        results.append(out)
    assert_close(results[0], results[1], 150)


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_logits_of_a_quantised_head(exact: CpuOps, softcap: float | None, num_rows: int) -> None:
    head = random_weight("Q4_0", 1003, 64)
    hidden = normal(num_rows, 64, scale=8.0)
    results = []
    for ops, weight in both(exact):
        out = np.empty((num_rows, 1003), np.float32)
        ops.logits(out, hidden, weight(head), softcap)
        ops.sync()
        results.append(out)
    assert_close(results[0], results[1], 64 + 20)


def test_softcap_of_small_and_large_logits(exact: CpuOps) -> None:
    hidden = np.array([[1e-4], [0.3], [5.0], [18.7], [18.8], [60.0], [-900.0]], np.float32)
    out = np.empty((7, 1), np.float32)
    exact.logits(out, hidden, exact.weight(float_tensor(np.ones((1, 1), np.float32))), 30.0)
    exact.sync()
    expected = 30.0 * np.tanh(hidden.astype(np.float64) / 30.0)
    np.testing.assert_allclose(out, expected, rtol=2.0**-21)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("num_rows", [1, 7])
def test_moe_mlp(exact: CpuOps, stacked: bool, num_rows: int) -> None:
    hidden, ffn, expert_ffn, num_experts = 48, 64, 32, 6
    shapes = [(ffn, hidden), (ffn, hidden), (hidden, ffn)]
    dense = [random_weight("F32", *s, seed=i) for i, s in enumerate(shapes)]
    router = random_weight("F32", num_experts, hidden, seed=5)
    gates = [random_weight("F32", expert_ffn * 2, hidden, seed=10 + i) for i in range(num_experts)]
    halves = [
        (
            float_tensor(g.data.view(np.float32)[:expert_ffn].copy()),
            float_tensor(g.data.view(np.float32)[expert_ffn:].copy()),
        )
        for g in gates
    ]
    downs = [random_weight("F32", hidden, expert_ffn, seed=20 + i) for i in range(num_experts)]
    norms = [np.abs(normal(hidden, seed=30 + i)) + np.float32(0.5) for i in range(5)]
    router_scale = normal(hidden, seed=40, scale=hidden**-0.5)
    expert_scale = np.abs(normal(num_experts, seed=41)) + np.float32(0.5)
    results = []
    for ops, weight in both(exact):
        gate_up: Any = (
            [weight(g) for g in gates] if stacked else [(weight(a), weight(b)) for a, b in halves]
        )
        experts = Experts(
            weight(router), router_scale, gate_up, [weight(d) for d in downs], expert_scale, 2
        )
        x = normal(num_rows, hidden, seed=50)
        gate, up, down = (weight(d) for d in dense)
        ops.moe_mlp(
            x, norms[0], gate, up, down, norms[1], experts, norms[2], norms[3], norms[4], EPS
        )
        ops.sync()
        results.append(x)
    assert_close(results[0], results[1], 8 * hidden + 4 * ffn)


def test_elementwise_kernels_agree_between_levels() -> None:
    source = random_weight("Q4_0", 100, 96)
    results = []
    for level in LEVELS:
        ops = cpu_ops(level)
        weight = ops.weight(source)
        x, norm = normal(5, 96, scale=3.0), normal(96, seed=1)
        hidden, capped = np.empty((5, 100), np.float32), np.empty((5, 100), np.float32)
        ops.gate_up(hidden, x, norm, EPS, weight, weight)
        ops.logits(capped, x, weight, 3.0)
        ops.rms_norm(x, x.copy(), norm, EPS)
        ops.sync()
        results.append(np.concatenate([hidden, capped, x], axis=1))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
