"""The ops in plain numpy on exactly dequantised float32: the specification, and the tests' oracle.

Every op runs at once. A row's result is independent of the other rows of its step, because every
matmul is made of products of one fixed shape (see `_ROWS`); nothing here is meant to be fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from culet.ops.interface import (
    Array,
    Experts,
    Int32Array,
    KvLayer,
    KvType,
    PageTable,
    Placement,
    Precision,
    Weight,
)
from culet.ops.reference_kv import ReferenceKvLayer, attend, row_slots
from culet.quant.blocks import decode_rows
from culet.quant.tensor import QTensor
from culet.quant.tiles import plain

Float32Array = NDArray[np.float32]

# Rows of x that one matmul takes; missing ones are zeros. BLAS chooses its kernel, and with it the
# order of the sums, by shape: with one shape, a row's result depends on that row alone.
_ROWS = 8
# Decoded bytes of a weight that one matmul takes: they stay in the cache for all rows of a step.
_SLICE_BYTES = 4 << 20
# Decoded weights are kept up to this total, which holds all of a 270M model.
DEFAULT_KEPT_BYTES = 2 << 30

_GELU_SCALE = np.float32(math.sqrt(2.0 / math.pi))
_GELU_CUBE = np.float32(0.044715)


class ReferenceWeight:
    """A weight or table that is decoded when it is used, and kept decoded while the budget lasts.

    Attributes:
        shape: [out, in] or [rows, values].
        reads_source: true; the mapped bytes stay in use.
    """

    reads_source: bool = True

    def __init__(self, source: QTensor, ops: ReferenceOps, keep: bool) -> None:
        self.shape = (source.num_rows, source.row_values)
        self._source = source
        self._ops = ops
        self._keep = keep
        self._kept: Float32Array | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that are kept decoded."""
        return 0 if self._kept is None else int(self._kept.nbytes)

    def rows(self, index: Int32Array | range) -> Float32Array:
        """Decoded rows [len(index), in]."""
        if self._kept is None and self._keep and self._ops.take_budget(math.prod(self.shape) * 4):
            self._kept = np.empty(self.shape, dtype=np.float32)
            for part in self.slices():
                self._kept[part.start : part.stop] = decode_rows(self._source, np.asarray(part))
            self._keep = False
        if self._kept is not None:
            kept = self._kept
            return kept[index.start : index.stop] if isinstance(index, range) else kept[index]
        return decode_rows(self._source, np.asarray(index))

    def slices(self) -> list[range]:
        """All rows, in parts of about `_SLICE_BYTES` decoded."""
        num_rows, num_values = self.shape
        step = max(1, _SLICE_BYTES // (4 * num_values))
        return [range(i, min(i + step, num_rows)) for i in range(0, num_rows, step)]


def rms(x: Float32Array, weight: Float32Array | None, eps: float) -> Float32Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; the mean is taken in float64."""
    mean_square = np.square(x, dtype=np.float64).mean(axis=-1, keepdims=True)
    inverse = (1.0 / np.sqrt(mean_square + eps)).astype(np.float32)
    normed: Float32Array = x * inverse
    if weight is not None:
        normed *= weight
    return normed


def gelu_tanh(x: Float32Array) -> Float32Array:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    with np.errstate(over="ignore"):  # x^3 of a huge x is inf, whose tanh is 1 as it should be
        inner = _GELU_SCALE * (x + _GELU_CUBE * x * x * x)
    result: Float32Array = np.float32(0.5) * x * (1 + np.tanh(inner))
    return result


def _own(weight: Weight) -> ReferenceWeight:
    assert isinstance(weight, ReferenceWeight), "a weight of another backend"
    return weight


def linear(x: Float32Array, matrix: Weight) -> Float32Array:
    """x matrix^T, [n, out]: products of one shape per slice of the weight, whatever n is."""
    weight = _own(matrix)
    out = np.empty((len(x), weight.shape[0]), dtype=np.float32)
    for part in weight.slices():
        transposed = weight.rows(part).T
        for start in range(0, len(x), _ROWS):
            block = np.zeros((_ROWS, x.shape[1]), dtype=np.float32)
            rows = x[start : start + _ROWS]
            block[: len(rows)] = rows
            out[start : start + _ROWS, part.start : part.stop] = (block @ transposed)[: len(rows)]
    return out


def rotate(x: Float32Array, cos: Float32Array, sin: Float32Array) -> Float32Array:
    """Rotary embedding of heads [n, heads, d] by angles [n, d/2]; pair i is lanes (i, i + d/2)."""
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def softcapped(z: Float32Array, softcap: float | None) -> Float32Array:
    """c tanh(z / c); z itself with softcap None."""
    if softcap is None:
        return z
    cap = np.float32(softcap)
    result: Float32Array = cap * np.tanh(z / cap)
    return result


class ReferenceOps:
    """Backend `reference`; see `Ops` for every method.

    Args:
        kept_bytes: how many bytes of decoded weights are kept between uses.
    """

    name = "reference"
    description = "numpy"
    precision: Precision = "exact"

    def __init__(self, kept_bytes: int = DEFAULT_KEPT_BYTES) -> None:
        self._budget_bytes = kept_bytes

    def take_budget(self, num_bytes: int) -> bool:
        """Reserve bytes for a decoded weight; false if they are not left."""
        if num_bytes > self._budget_bytes:
            return False
        self._budget_bytes -= num_bytes
        return True

    # ---- storage -------------------------------------------------------------------------------
    def empty(self, *shape: int) -> Array:
        return np.empty(shape, dtype=np.float32)

    def constant(self, values: NDArray[np.float32]) -> Array:
        return np.ascontiguousarray(values, dtype=np.float32)

    def numpy(self, array: Array) -> NDArray[np.float32]:
        return np.asarray(array)

    def weight(self, source: QTensor) -> Weight:
        return ReferenceWeight(plain(source), self, keep=True)

    def table(self, source: QTensor, placement: Placement) -> Weight:
        return ReferenceWeight(plain(source), self, keep=False)

    def kv_layer(
        self, num_pages: int, page_tokens: int, num_kv_heads: int, head_dim: int, kv_type: KvType
    ) -> KvLayer:
        return ReferenceKvLayer(num_pages, page_tokens, num_kv_heads, head_dim, kv_type)

    def copy_page(self, kv: KvLayer, source: int, target: int) -> None:
        assert isinstance(kv, ReferenceKvLayer)
        kv.k.copy_page(source, target)
        kv.v.copy_page(source, target)

    def sync(self) -> None:
        pass

    # ---- rows ----------------------------------------------------------------------------------
    def embed(self, out: Array, table: Weight, ids: Int32Array, scale: float) -> None:
        out[:] = _own(table).rows(ids) * np.float32(scale)

    def gather_rows(self, out: Array, x: Array, rows: Int32Array) -> None:
        out[:] = x[rows]

    def scatter_rows(self, x: Array, values: Array, rows: Int32Array) -> None:
        x[rows] = values

    # ---- layer ---------------------------------------------------------------------------------
    def rope_table(
        self, cos: Array, sin: Array, positions: Int32Array, inverse_frequencies: Array
    ) -> None:
        angle = positions.astype(np.float32)[:, None] * inverse_frequencies
        cos[:] = np.cos(angle, dtype=np.float64)
        sin[:] = np.sin(angle, dtype=np.float64)

    def per_layer_inputs(
        self,
        out: Array,
        table: Weight,
        ids: Int32Array,
        first_layer: int,
        x: Array,
        projection: Weight,
        norm: Array,
        eps: float,
    ) -> None:
        num_rows, num_layers, width = out.shape
        projected = linear(x, projection) * np.float32(x.shape[1] ** -0.5)
        normed = rms(projected.reshape(out.shape), norm, eps)
        begin = first_layer * width
        looked_up = _own(table).rows(ids)[:, begin : begin + num_layers * width].reshape(out.shape)
        out[:] = (normed + looked_up * np.float32(width**0.5)) * np.float32(2.0**-0.5)

    def norm_linear(
        self,
        outs: Sequence[Array],
        x: Array,
        norm: Array | None,
        eps: float,
        weights: Sequence[Weight],
    ) -> None:
        y = x if norm is None else rms(x, norm, eps)
        for out, weight in zip(outs, weights, strict=True):
            out[:] = linear(y, weight)

    def attention_inputs(
        self,
        q: Array | None,
        k: Array | None,
        v: Array | None,
        q_norm: Array | None,
        k_norm: Array | None,
        normalize_v: bool,
        eps: float,
        cos: Array,
        sin: Array,
        kv: KvLayer | None,
        pages: PageTable,
    ) -> None:
        head_dim = 2 * cos.shape[1]
        if q is not None:
            heads = q.reshape(len(q), -1, head_dim)
            heads[:] = rotate(rms(heads, q_norm, eps), cos, sin)
        if k is not None:
            assert isinstance(kv, ReferenceKvLayer)
            raw_k = k.reshape(len(k), -1, head_dim)
            raw_v = raw_k if v is None else v.reshape(raw_k.shape)
            page, offset = row_slots(pages)
            kv.v.write(page, offset, rms(raw_v, None, eps) if normalize_v else raw_v)
            kv.k.write(page, offset, rotate(rms(raw_k, k_norm, eps), cos, sin))

    def attention(
        self, out: Array, q: Array, kv: KvLayer, pages: PageTable, window: int | None, scale: float
    ) -> None:
        assert isinstance(kv, ReferenceKvLayer)
        attend(out, q, kv, pages, window, scale)

    def linear_norm_add(
        self, x: Array, a: Array, weight: Weight, norm: Array | None, eps: float
    ) -> None:
        y = linear(a, weight)
        x += y if norm is None else rms(y, norm, eps)

    def gate_up(
        self, out: Array, x: Array, norm: Array, eps: float, gate: Weight, up: Weight
    ) -> None:
        y = rms(x, norm, eps)
        out[:] = gelu_tanh(linear(y, gate)) * linear(y, up)

    def per_layer_step(
        self,
        x: Array,
        per_layer: Array,
        gate: Weight,
        projection: Weight,
        norm: Array,
        eps: float,
    ) -> None:
        gated = gelu_tanh(linear(x, gate)) * per_layer
        x += rms(linear(gated, projection), norm, eps)

    def scale(self, x: Array, factor: float) -> None:
        x *= np.float32(factor)

    def moe_mlp(
        self,
        x: Array,
        mlp_norm: Array,
        gate: Weight,
        up: Weight,
        down: Weight,
        mlp_post_norm: Array,
        experts: Experts,
        experts_norm: Array,
        experts_post_norm: Array,
        post_norm: Array,
        eps: float,
    ) -> None:
        y = rms(x, mlp_norm, eps)
        dense = linear(gelu_tanh(linear(y, gate)) * linear(y, up), down)
        scores = linear(rms(x, None, eps) * experts.router_scale, experts.router)
        shares = expert_shares(scores, experts.num_used, experts.expert_scale)
        routed = _routed(rms(x, experts_norm, eps), shares, experts)
        both = rms(dense, mlp_post_norm, eps) + rms(routed, experts_post_norm, eps)
        x += rms(both, post_norm, eps)

    # ---- head ----------------------------------------------------------------------------------
    def rms_norm(self, out: Array, x: Array, norm: Array, eps: float) -> None:
        out[:] = rms(x, norm, eps)

    def logits(self, out: Array, hidden: Array, head: Weight, softcap: float | None) -> None:
        out[:] = softcapped(linear(hidden, head), softcap)


def expert_shares(scores: Float32Array, num_used: int, expert_scale: Float32Array) -> Float32Array:
    """Each expert's factor, 0 for unused ones, from router scores; both [n, num_experts]."""
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probability = shifted / shifted.sum(axis=-1, keepdims=True)
    used = np.argsort(-probability, axis=-1, kind="stable")[:, :num_used]
    share = np.take_along_axis(probability, used, axis=-1)
    share = share / share.sum(axis=-1, keepdims=True) * expert_scale[used]
    shares: Float32Array = np.zeros_like(probability)
    np.put_along_axis(shares, used, share, axis=-1)
    return shares


def _routed(z: Float32Array, shares: Float32Array, experts: Experts) -> Float32Array:
    """Sum of the experts' outputs by share, in ascending order of expert."""
    total: Float32Array = np.zeros_like(z)
    for index, (fused, down) in enumerate(zip(experts.gate_up, experts.down, strict=True)):
        rows = np.flatnonzero(shares[:, index])
        if not len(rows):
            continue
        if isinstance(fused, tuple):
            gate, up = linear(z[rows], fused[0]), linear(z[rows], fused[1])
        else:
            gate, up = np.split(linear(z[rows], fused), 2, axis=-1)
        total[rows] += shares[rows, index, None] * linear(gelu_tanh(gate) * up, down)
    return total
