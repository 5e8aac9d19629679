"""The ops that models are written against. Backends: `reference` (numpy), `cpu` (C++).

Rules that hold for every op:

* An op enqueues; results are valid after `sync()`. `reference` runs at once and its sync is empty.
  Buffers given to an op must not be changed by the caller before `sync()`; the backend keeps them
  (weights, index arrays and page tables too) alive until then, so the caller may drop them.
* No op is called with zero rows.
* Ops write into buffers that the caller gives. Shapes are fixed by the step, so that a recorded
  sequence of ops can be replayed. An output never aliases an input unless the op says so.
* Host index data (ids, rows, positions) are C-contiguous int32 numpy arrays.
* `Array` is the backend's own buffer type: numpy float32 on `reference` and `cpu`. Model code may
  slice rows and pass arrays on, nothing else.
* Weights are opaque. A weight [out, in] maps x [n, in] to x W^T [n, out].
* `rms(x, w)` below is x / sqrt(mean(x^2) + eps) * w over the last axis, in float32; w None = 1.
* A row's result does not depend on the other rows of the step, on how many there are, or on the
  number of threads (batch invariance).

A fused op is defined by its decomposition in `reference.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from culet.quant.tensor import QTensor

Array = Any
KvType = Literal["f16", "bf16", "f32", "q8_0"]
Placement = Literal["device", "host", "disk"]
Precision = Literal["fast", "exact"]
Int32Array = NDArray[np.int32]

# Softmax partials belong to absolute segments of this many tokens and are merged left to right,
# in prefill and decode alike; this makes attention independent of chunking.
ATTENTION_SEGMENT_TOKENS = 512


class Weight(Protocol):
    """A matmul weight or look-up table of a backend, opaque to models."""

    @property
    def reads_source(self) -> bool:
        """Whether ops go on reading the tensor that it was made from (the mapped file)."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that it holds now, the source's not counted."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PageTable:
    """Which pages of one attention group hold the tokens of the step's sequences.

    Rows of a sequence are contiguous in the step, at ascending positions.

    Attributes:
        page_tokens: tokens a page holds; a power of two that divides ATTENTION_SEGMENT_TOKENS
            or is a multiple of it.
        row_seq: [n] index of each row's sequence.
        positions: [n] absolute position of each row.
        seq_pages: [num_seqs + 1] offsets of each sequence's entries in `pages`.
        first_page: [num_seqs] absolute number (position // page_tokens) of a sequence's first
            entry; greater than 0 where pages that left the window were freed.
        pages: page ids, per sequence in order of position.
    """

    page_tokens: int
    row_seq: Int32Array
    positions: Int32Array
    seq_pages: Int32Array
    first_page: Int32Array
    pages: Int32Array


class KvLayer(Protocol):
    """K and V storage of one owning layer: [num_pages, num_kv_heads, page_tokens, head_dim] each.

    Values are stored as the `KvType` says, rounded to nearest even. f16 saturates at +-65504. q8_0
    holds groups of 32 along head_dim with one f16 scale (ggml's Q8_0: d = max|x| / 127 in float32,
    codes x * (1 / d) rounded half away from zero with the unrounded d, then d rounded to f16), so
    that head_dim must be a multiple of 32: `BackendError` otherwise.
    """

    @property
    def num_bytes(self) -> int:
        """Bytes of the storage."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """The routed experts of one layer.

    Attributes:
        router: weight [num_experts, hidden].
        router_scale: [hidden], already multiplied by hidden^-0.5.
        gate_up: per expert, one weight [2 * ffn, hidden] or a (gate, up) pair of [ffn, hidden].
        down: per expert, weight [hidden, ffn].
        expert_scale: [num_experts] factor on each expert's share.
        num_used: experts per token.
    """

    router: Weight
    router_scale: Array
    gate_up: Sequence[Weight | tuple[Weight, Weight]]
    down: Sequence[Weight]
    expert_scale: Array
    num_used: int


class Ops(Protocol):
    """One backend."""

    name: str
    precision: Precision

    @property
    def description(self) -> str:
        """What computes, for the log."""
        ...

    # ---- storage -------------------------------------------------------------------------------
    def empty(self, *shape: int) -> Array:
        """An uninitialised float32 buffer."""
        ...

    def constant(self, values: NDArray[np.float32]) -> Array:
        """A float32 array that never changes (norm weights, frequencies)."""
        ...

    def numpy(self, array: Array) -> NDArray[np.float32]:
        """The values of a buffer, after `sync()`."""
        ...

    def weight(self, source: QTensor) -> Weight:
        """A matmul weight [out, in]; may be re-encoded. Usable in `embed` as well (tied table).

        After this the backend no longer reads `source`, so its pages may be released, unless
        `reads_source` says otherwise.
        """
        ...

    def table(self, source: QTensor, placement: Placement) -> Weight:
        """A look-up table [rows, values], only gathered from; `disk` reads through the mapping."""
        ...

    def kv_layer(
        self, num_pages: int, page_tokens: int, num_kv_heads: int, head_dim: int, kv_type: KvType
    ) -> KvLayer: ...

    def copy_page(self, kv: KvLayer, source: int, target: int) -> None:
        """Page `target` of K and of V becomes a copy of page `source`, bit for bit.

        A sequence that starts inside a page which another one goes on writing gets its own copy.
        """
        ...

    def sync(self) -> None:
        """Run what was enqueued and wait. Raises what an op raised."""
        ...

    # ---- rows ----------------------------------------------------------------------------------
    def embed(self, out: Array, table: Weight, ids: Int32Array, scale: float) -> None:
        """out [n, d] = scale * table[ids]."""
        ...

    def gather_rows(self, out: Array, x: Array, rows: Int32Array) -> None:
        """out [m, d] = x[rows]."""
        ...

    def scatter_rows(self, x: Array, values: Array, rows: Int32Array) -> None:
        """x[rows] = values [m, d]."""
        ...

    # ---- layer ---------------------------------------------------------------------------------
    def rope_table(
        self, cos: Array, sin: Array, positions: Int32Array, inverse_frequencies: Array
    ) -> None:
        """cos, sin [n, head_dim/2] of float32(position) * inverse_frequencies."""
        ...

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
        """Per-layer inputs of consecutive layers, for all rows.

        out [n, L, p] = (rms((projection x) * d^-0.5, norm) + table[ids, first_layer:][:L] * p^0.5)
        * 2^-0.5, where x [n, d] is the scaled embedding, projection [L * p, d], and the table's
        rows are layer-major with p values a layer. `first_layer` is where out's L layers begin.
        """
        ...

    def norm_linear(
        self,
        outs: Sequence[Array],
        x: Array,
        norm: Array | None,
        eps: float,
        weights: Sequence[Weight],
    ) -> None:
        """outs[i] [n, out_i] = rms(x, norm) weights[i]^T; with norm None, x is used as it is."""
        ...

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
        """Head norms, rotary embedding, and the write of K and V into their pages.

        q [n, heads * head_dim] becomes rope(rms(q, q_norm)) in place, per head. k [n, kv_heads *
        head_dim] is normed and rotated likewise and stored at its row's position; v is normed
        without a weight if `normalize_v`, then stored. v None means V is the raw k (before norm
        and rotation). q None or k None: that half is left out. k and v are scratch afterwards.
        """
        ...

    def attention(
        self, out: Array, q: Array, kv: KvLayer, pages: PageTable, window: int | None, scale: float
    ) -> None:
        """Causal attention of each row over its sequence's stored tokens.

        out, q [n, heads * head_dim]. A row at position t sees positions s with s <= t and, with a
        window w, s > t - w. Heads are grouped: head h reads K/V head h // (heads / kv_heads).
        K and V are read back from pages as stored. Rows' own K and V were written before.
        """
        ...

    def linear_norm_add(
        self, x: Array, a: Array, weight: Weight, norm: Array | None, eps: float
    ) -> None:
        """x [n, d] += rms(a weight^T, norm), a [n, in]; norm None adds the product as it is."""
        ...

    def gate_up(
        self, out: Array, x: Array, norm: Array, eps: float, gate: Weight, up: Weight
    ) -> None:
        """out [n, ffn] = gelu_tanh(y gate^T) * (y up^T) with y = rms(x, norm)."""
        ...

    def per_layer_step(
        self,
        x: Array,
        per_layer: Array,
        gate: Weight,
        projection: Weight,
        norm: Array,
        eps: float,
    ) -> None:
        """x [n, d] += rms((gelu_tanh(x gate^T) * per_layer) projection^T, norm).

        per_layer [n, p]: this layer's slice of `per_layer_inputs` (rows may be strided).
        """
        ...

    def scale(self, x: Array, factor: float) -> None:
        """x *= factor."""
        ...

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
        """Gemma 4's dense-beside-routed MLP.

        x += rms(rms(dense, mlp_post_norm) + rms(routed, experts_post_norm), post_norm), where dense
        is down(gelu_tanh(gate y) * up y) of y = rms(x, mlp_norm), and routed is the sum over the
        `num_used` most probable experts of share_e * down_e(gelu_tanh(gate_e z) * up_e z) with
        z = rms(x, experts_norm). Router: softmax(router (rms(x, None) * router_scale)); the used
        shares are divided by their sum, then multiplied by expert_scale. Of equally probable
        experts the lower index is used; the sum runs in ascending order of expert index.
        """
        ...

    # ---- head ----------------------------------------------------------------------------------
    def rms_norm(self, out: Array, x: Array, norm: Array, eps: float) -> None:
        """out = rms(x, norm)."""
        ...

    def logits(self, out: Array, hidden: Array, head: Weight, softcap: float | None) -> None:
        """out [n, vocab] = c * tanh(z / c), z = hidden head^T; z itself with softcap None."""
        ...


@runtime_checkable
class Profiled(Protocol):
    """A backend that can say where its time goes."""

    def set_profile(self, on: bool) -> None:
        """Keep times from now on, or stop."""
        ...

    def take_profile(self) -> dict[str, tuple[int, float]]:
        """By op: how often it ran and its seconds, since the last call of this."""
        ...
