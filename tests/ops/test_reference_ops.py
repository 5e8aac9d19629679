"""The reference ops against their formulas in float64, and the promises that hold for every op.

Tolerances: a float32 sum of n products is off by at most n eps times the sum of their magnitudes
(n eps for short); what follows it adds a few eps of its own. `close` takes n and that magnitude.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from culet.formats.gguf_writer import float_tensor
from culet.ops.interface import Experts, Weight
from culet.ops.reference import ReferenceOps, gelu_tanh, linear
from culet.quant.blocks import decode
from culet.quant.encode import encode
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
EPS32 = 2.0**-23
EPS = 1e-6  # of the norms


@pytest.fixture
def ops() -> ReferenceOps:
    return ReferenceOps()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def normal(rng: np.random.Generator, *shape: int) -> Float32Array:
    return rng.standard_normal(shape).astype(np.float32)


def weight(ops: ReferenceOps, values: Float32Array) -> Weight:
    return ops.weight(float_tensor("w", values))


def close(found: Float32Array, expected: Float64Array, num_terms: int, size: float) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=(num_terms + 16) * EPS32 * size)


def rms64(x: NDArray[np.floating], norm: Float32Array | None) -> Float64Array:
    wide = x.astype(np.float64)
    y = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPS)
    return y if norm is None else y * norm


def gelu64(x: Float64Array) -> Float64Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# ---- rows ----------------------------------------------------------------------------------------
def test_embed_scales_rows(ops: ReferenceOps, rng: np.random.Generator) -> None:
    table, ids = normal(rng, 9, 5), np.array([8, 0, 8], np.int32)
    out = ops.empty(3, 5)
    ops.embed(out, ops.table(float_tensor("t", table), "disk"), ids, 2.5)
    np.testing.assert_array_equal(out, table[ids] * np.float32(2.5))


def test_gather_and_scatter(ops: ReferenceOps, rng: np.random.Generator) -> None:
    x, rows = normal(rng, 6, 3), np.array([4, 1], np.int32)
    out = ops.empty(2, 3)
    ops.gather_rows(out, x, rows)
    np.testing.assert_array_equal(out, x[[4, 1]])
    values, before = normal(rng, 2, 3), x.copy()
    ops.scatter_rows(x, values, rows)
    np.testing.assert_array_equal(x[[4, 1]], values)
    np.testing.assert_array_equal(x[[0, 2, 3, 5]], before[[0, 2, 3, 5]])


# ---- layer ---------------------------------------------------------------------------------------
def test_norm_linear(ops: ReferenceOps, rng: np.random.Generator) -> None:
    x, norm = normal(rng, 11, 24), normal(rng, 24)
    values = [normal(rng, 7, 24), normal(rng, 5, 24)]
    outs = [ops.empty(11, 7), ops.empty(11, 5)]
    ops.norm_linear(outs, x, norm, EPS, [weight(ops, v) for v in values])
    for out, v in zip(outs, values, strict=True):
        size = float((np.abs(rms64(x, norm)) @ np.abs(v.T)).max())
        close(out, rms64(x, norm) @ v.T.astype(np.float64), 24, size)
    ops.norm_linear(outs[:1], x, None, EPS, [weight(ops, values[0])])
    close(outs[0], x.astype(np.float64) @ values[0].T, 24, 24.0 * 9)


def test_linear_norm_add(ops: ReferenceOps, rng: np.random.Generator) -> None:
    x, a, w, norm = normal(rng, 3, 8), normal(rng, 3, 20), normal(rng, 8, 20), normal(rng, 8)
    product = a.astype(np.float64) @ w.T
    relative = float((np.abs(a) @ np.abs(w.T)).max() / np.sqrt((product**2).mean(-1)).min())
    for given in (norm, None):
        y = x.copy()
        ops.linear_norm_add(y, a, weight(ops, w), given, EPS)
        added = product if given is None else rms64(product, given)
        size = 20.0 * 9 if given is None else relative * float(np.abs(norm).max())
        close(y, x + added, 20, size)


def test_gate_up(ops: ReferenceOps, rng: np.random.Generator) -> None:
    x, norm = normal(rng, 4, 16), normal(rng, 16)
    gate, up = normal(rng, 9, 16), normal(rng, 9, 16)
    out = ops.empty(4, 9)
    ops.gate_up(out, x, norm, EPS, weight(ops, gate), weight(ops, up))
    y = rms64(x, norm)
    expected = gelu64(y @ gate.T) * (y @ up.T)
    size = float(((np.abs(y) @ np.abs(gate.T)) * (np.abs(y) @ np.abs(up.T))).max())
    close(out, expected, 2 * 16, size)


def test_gelu_of_huge_values_is_the_value_or_nothing() -> None:
    x = np.array([3e38, 1e20, -1e20, -3e38, 0.0], np.float32)
    np.testing.assert_array_equal(gelu_tanh(x), np.array([3e38, 1e20, -0.0, -0.0, 0.0], np.float32))


def test_per_layer_inputs(ops: ReferenceOps, rng: np.random.Generator) -> None:
    num_layers, width, hidden, first = 3, 6, 10, 2
    x, norm = normal(rng, 4, hidden), normal(rng, width)
    table = normal(rng, 7, (first + num_layers + 1) * width)
    projection = normal(rng, num_layers * width, hidden)
    ids = np.array([6, 0, 3, 3], np.int32)
    out = ops.empty(4, num_layers, width)
    ops.per_layer_inputs(
        out, ops.table(float_tensor("t", table), "disk"), ids, first, x,
        weight(ops, projection), norm, EPS,
    )  # fmt: skip
    for row, token in enumerate(ids):
        for layer in range(num_layers):
            part = projection[layer * width : (layer + 1) * width].astype(np.float64)
            projected = rms64(part @ x[row] * hidden**-0.5, norm)
            begin = (first + layer) * width
            looked_up = table[token, begin : begin + width] * width**0.5
            close(out[row, layer], (projected + looked_up) / 2**0.5, hidden, 50.0)


def test_per_layer_step_takes_strided_rows(ops: ReferenceOps, rng: np.random.Generator) -> None:
    x, gate, projection = normal(rng, 3, 8), normal(rng, 5, 8), normal(rng, 8, 5)
    norm, inputs = normal(rng, 8), normal(rng, 3, 4, 5)
    expected = x + rms64(
        (gelu64(x.astype(np.float64) @ gate.T) * inputs[:, 2]) @ projection.T, norm
    )
    ops.per_layer_step(x, inputs[:, 2], weight(ops, gate), weight(ops, projection), norm, EPS)
    close(x, expected, 13, 60.0)


def test_moe_mlp(ops: ReferenceOps, rng: np.random.Generator) -> None:
    """Token by token and expert by expert, fused and split forms of gate and up alike."""
    rows, hidden, ffn, count, used = 6, 12, 7, 5, 2
    x = normal(rng, rows, hidden)
    gate, up, down = normal(rng, 9, hidden), normal(rng, 9, hidden), normal(rng, hidden, 9)
    norms = [normal(rng, hidden) for _ in range(5)]
    router, router_scale = (
        normal(rng, count, hidden),
        normal(rng, hidden) * np.float32(hidden**-0.5),
    )
    gate_up, expert_down = normal(rng, count, 2 * ffn, hidden), normal(rng, count, hidden, ffn)
    expert_scale = rng.uniform(0.5, 2.0, count).astype(np.float32)

    def experts(split: bool) -> Experts:
        halves = [(weight(ops, e[:ffn]), weight(ops, e[ffn:])) for e in gate_up]
        fused = [weight(ops, e) for e in gate_up]
        return Experts(
            router=weight(ops, router), router_scale=router_scale,
            gate_up=halves if split else fused, down=[weight(ops, e) for e in expert_down],
            expert_scale=expert_scale, num_used=used,
        )  # fmt: skip

    mlp_norm, mlp_post, experts_norm, experts_post, post = norms
    expected = np.empty((rows, hidden))
    for row in range(rows):
        y = rms64(x[row], mlp_norm)
        dense = (gelu64(gate @ y) * (up @ y)) @ down.T
        scores = router @ (rms64(x[row], None) * router_scale)
        probability = np.exp(scores) / np.exp(scores).sum()
        chosen = np.argsort(probability)[::-1][:used]
        z = rms64(x[row], experts_norm)
        routed = np.zeros(hidden)
        for e in chosen:
            hidden_e = gelu64(gate_up[e, :ffn] @ z) * (gate_up[e, ffn:] @ z)
            share = probability[e] / probability[chosen].sum() * expert_scale[e]
            routed += share * (expert_down[e] @ hidden_e)
        both = rms64(dense, mlp_post) + rms64(routed, experts_post)
        expected[row] = x[row] + rms64(both, post)
    for split in (False, True):
        found = x.copy()
        ops.moe_mlp(
            found, mlp_norm, weight(ops, gate), weight(ops, up), weight(ops, down), mlp_post,
            experts(split), experts_norm, experts_post, post, EPS,
        )  # fmt: skip
        close(found, expected, 3 * hidden, 60.0)


def test_equally_probable_experts_lower_index_first(ops: ReferenceOps) -> None:
    from culet.ops.reference import expert_shares

    shares = expert_shares(np.zeros((1, 4), np.float32), 2, np.ones(4, np.float32))
    np.testing.assert_array_equal(shares, [[0.5, 0.5, 0, 0]])


# ---- head ----------------------------------------------------------------------------------------
def test_logits_and_their_cap(ops: ReferenceOps, rng: np.random.Generator) -> None:
    hidden, table = normal(rng, 3, 16), normal(rng, 40, 16) * 10
    head, out = weight(ops, table), ops.empty(3, 40)
    ops.logits(out, hidden, head, None)
    exact = hidden.astype(np.float64) @ table.T
    close(out, exact, 16, 16.0 * 90)
    ops.logits(out, hidden, head, 30.0)
    close(out, 30 * np.tanh(exact / 30), 16, 16.0 * 90)


# ---- promises ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("num_out", "num_in"), [(3, 5), (64, 32), (67, 40), (33, 2048), (1, 7)])
def test_a_row_depends_on_no_other_row(
    ops: ReferenceOps, rng: np.random.Generator, num_out: int, num_in: int
) -> None:
    """Bit for bit, wherever the row stands and however many rows there are."""
    w = weight(ops, normal(rng, num_out, num_in))
    x = normal(rng, 41, num_in)
    together = linear(x, w)
    for count in (1, 2, 7, 8, 9, 40):
        np.testing.assert_array_equal(linear(x[-count:], w), together[-count:])
    for row in range(len(x)):
        np.testing.assert_array_equal(linear(x[row : row + 1], w)[0], together[row])


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_weights_are_used_exactly_as_decoded(rng: np.random.Generator, type_name: str) -> None:
    """Kept or decoded anew each time, in one slice or many: the same values, the same bits."""
    qtype = BY_NAME[type_name]
    values = normal(rng, 4200, 256)  # two slices
    tensor = QTensor("w", qtype, values.shape, encode(values, qtype))
    x = normal(rng, 3, 256)
    kept, never_kept = ReferenceOps(), ReferenceOps(kept_bytes=0)
    first, second = kept.weight(tensor), never_kept.weight(tensor)
    np.testing.assert_array_equal(linear(x, first), linear(x, second))
    assert (first.num_bytes, second.num_bytes) == (values.nbytes, 0)
    exact = x.astype(np.float64) @ decode(tensor).T
    close(linear(x, second), exact, 256, float((np.abs(x) @ np.abs(decode(tensor).T)).max()))
    ids = np.array([4199, 0, 17], np.int32)
    for table in (first, second, kept.table(tensor, "host")):
        out = kept.empty(3, 256)
        kept.embed(out, table, ids, 1.0)
        np.testing.assert_array_equal(out, decode(tensor)[ids])


def test_kept_weights_stay_within_their_budget(rng: np.random.Generator) -> None:
    ops = ReferenceOps(kept_bytes=3000)
    weights = [weight(ops, normal(rng, 10, 64)) for _ in range(3)]  # 2,560 bytes each
    for w in weights:
        linear(normal(rng, 1, 64), w)
    assert sum(w.num_bytes for w in weights) == 2560
