"""The training forward: transformers' own parameters, without the work that training can spare.

Shared layers write no K/V, so only positions that are trained go through them and the head; and
only attention sees rows padded to one length, all else runs over the real tokens. Made for one KV
head: scores of all heads of a row are one matrix product. A test holds the logits equal to those of
transformers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Gemma4ForCausalLM

from training.model import RMS_EPS

MASKED = -1e30


@dataclass(frozen=True, slots=True)
class Grid:
    """Where tokens that lie one after another go when rows are padded to one length.

    Attributes:
        position: int64 [n], of each token in its row.
        place: int64 [n], row * width + column.
    """

    position: Tensor
    place: Tensor
    num_rows: int
    width: int

    def spread(self, values: Tensor) -> Tensor:
        """[n, ...] -> [num_rows, width, ...], zeros between."""
        shape = (self.num_rows * self.width, *values.shape[1:])
        padded = values.new_zeros(shape).index_copy(0, self.place, values)
        return padded.view(self.num_rows, self.width, *values.shape[1:])

    def gather(self, padded: Tensor) -> Tensor:
        """The way back."""
        return padded.flatten(0, 1).index_select(0, self.place)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some items, all their tokens in one line.

    Attributes:
        ids: int64 [n].
        query: int64 [m], indices of the tokens whose next one is trained.
        target: int64 [m], those next tokens.
        tokens, queries: how all tokens, and how the queries, lie in padded rows.
    """

    ids: Tensor
    query: Tensor
    target: Tensor
    tokens: Grid
    queries: Grid


@dataclass(frozen=True, slots=True)
class _Geometry:
    """What attention of one kind needs to know of positions: rotations and who sees whom.

    Attributes:
        grid: of the queries.
        cos, sin: [n, 1, head_dim/2] for the queries.
        bias: [num_rows, width, 1, T] added to scores.
    """

    grid: Grid
    cos: Tensor
    sin: Tensor
    bias: Tensor


def loss_sum(model: Gemma4ForCausalLM, batch: Batch) -> Tensor:
    """Summed cross-entropy over the trained tokens of a batch."""
    return F.cross_entropy(trained_logits(model, batch), batch.target, reduction="sum")


def trained_logits(model: Gemma4ForCausalLM, batch: Batch) -> Tensor:
    """Soft-capped logits [m, vocab] at the queries."""
    text: Any = model.model  # torch types the attributes of modules as unions
    config: Any = model.config
    x = F.embedding(batch.ids, text.embed_tokens.weight) * config.hidden_size**0.5
    per_layer = _per_layer_inputs(text, batch.ids, x)
    kinds = set(config.layer_types)
    length = batch.tokens.width
    geometry = {kind: _geometry(model, kind, batch.tokens, length) for kind in kinds}
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    for index, layer in enumerate(text.layers):
        kind = config.layer_types[index]
        if index == first_shared:
            x, per_layer = x[batch.query], per_layer[batch.query]
            geometry = {kind: _geometry(model, kind, batch.queries, length) for kind in kinds}
        normed = _norm(x, layer.input_layernorm.weight)
        if index < first_shared:
            kept[kind] = _keys_values(layer.self_attn, normed, geometry[kind])
        mixed = _attend(layer.self_attn, normed, kept[kind], geometry[kind])
        x = x + _norm(mixed, layer.post_attention_layernorm.weight)
        x = _feed_forward(layer, x, per_layer[:, index])
    x = _norm(x, text.norm.weight)
    cap: float = config.final_logit_softcapping
    return cap * torch.tanh(F.linear(x, text.embed_tokens.weight) / cap)


def _norm(x: Tensor, weight: Tensor | None) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, RMS_EPS)


def _per_layer_inputs(text: Any, ids: Tensor, x: Tensor) -> Tensor:
    """[n, layers, ple_dim]: the table's rows and a projection of the embedding, in balance."""
    width: int = text.hidden_size_per_layer_input
    rows: Tensor = F.embedding(ids, text.embed_tokens_per_layer.weight) * width**0.5
    projected = F.linear(x, text.per_layer_model_projection.weight) / math.sqrt(x.shape[-1])
    shape = (len(ids), -1, width)
    projected = _norm(projected.view(shape), text.per_layer_projection_norm.weight)
    return (projected + rows.view(shape)) * math.sqrt(0.5)


def _geometry(model: Gemma4ForCausalLM, kind: str, grid: Grid, length: int) -> _Geometry:
    """Queries of a grid against `length` keys of the same rows."""
    frequencies: Tensor = getattr(model.model.rotary_emb, f"{kind}_inv_freq")
    angles = (grid.position[:, None].float() * frequencies)[:, None]
    distance = grid.spread(grid.position)[:, :, None] - torch.arange(length)
    seen = distance >= 0
    if kind == "sliding_attention":
        seen &= distance < model.config.sliding_window
    bias = torch.zeros(seen.shape).masked_fill(~seen, MASKED)[:, :, None]
    return _Geometry(grid, angles.cos(), angles.sin(), bias)


def _rotate(x: Tensor, geometry: _Geometry) -> Tensor:
    """x [n, heads, head_dim]; pairs are lanes (i, i + head_dim/2)."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = geometry.cos, geometry.sin
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def _keys_values(attention: Any, normed: Tensor, geometry: _Geometry) -> tuple[Tensor, Tensor]:
    """K and V [num_rows, T, head_dim] of the one KV head."""
    key = _norm(F.linear(normed, attention.k_proj.weight), attention.k_norm.weight)
    key = _rotate(key[:, None], geometry)[:, 0]
    value = _norm(F.linear(normed, attention.v_proj.weight), None)
    return geometry.grid.spread(key), geometry.grid.spread(value)


def _attend(
    attention: Any, normed: Tensor, kept: tuple[Tensor, Tensor], geometry: _Geometry
) -> Tensor:
    key, value = kept
    query = F.linear(normed, attention.q_proj.weight).view(len(normed), -1, attention.head_dim)
    query = _rotate(_norm(query, attention.q_norm.weight), geometry)
    padded = geometry.grid.spread(query)
    scores = padded.flatten(1, 2) @ key.transpose(1, 2)
    scores = scores.view(*padded.shape[:3], -1) + geometry.bias
    mixed = (torch.softmax(scores, dim=-1).flatten(1, 2) @ value).view(padded.shape)
    return F.linear(geometry.grid.gather(mixed).flatten(1), attention.o_proj.weight)


def _feed_forward(layer: Any, x: Tensor, per_layer: Tensor) -> Tensor:
    """MLP and per-layer step of a layer, its scale included."""
    mlp = layer.mlp
    normed = _norm(x, layer.pre_feedforward_layernorm.weight)
    gate = F.gelu(F.linear(normed, mlp.gate_proj.weight), approximate="tanh")
    out = F.linear(gate * F.linear(normed, mlp.up_proj.weight), mlp.down_proj.weight)
    x = x + _norm(out, layer.post_feedforward_layernorm.weight)
    gate = F.gelu(F.linear(x, layer.per_layer_input_gate.weight), approximate="tanh")
    out = F.linear(gate * per_layer, layer.per_layer_projection.weight)
    x = x + _norm(out, layer.post_per_layer_input_norm.weight)
    scale: Tensor = layer.layer_scalar
    return x * scale
