"""Gemma 4 text: dense, E-series (per-layer inputs, shared K/V) and mixture of experts.

Arithmetic as in transformers' modeling_gemma4.py, float32 throughout. Everything that depends on a
layer's index is read from its `LayerSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from culet.models.base import Step, StepOutput
from culet.models.config import LayerSpec, ModelConfig
from culet.models.layers import Attention, GatedMlp, Head, RopeTables, Rows, Scratch
from culet.models.weights import WeightLoader
from culet.ops.interface import Array, Experts, Int32Array, KvLayer, Ops, Placement, Weight


class MoeMlp:
    """The feed-forward block of a mixture of experts: a gated MLP with routed experts beside it."""

    def __init__(self, config: ModelConfig, spec: LayerSpec, loader: WeightLoader) -> None:
        self.dense = GatedMlp(config, spec, loader)
        self.experts = _load_experts(config, spec, loader)
        name = f"layers.{spec.index}."
        hidden = config.hidden_size
        self.dense_post_norm = loader.vector(name + "mlp_post_norm", hidden)
        self.experts_norm = loader.vector(name + "experts_norm", hidden)
        self.experts_post_norm = loader.vector(name + "experts_post_norm", hidden)

    def run(self, x: Array, rows: Rows, scratch: Scratch) -> None:
        """x += the block's output."""
        dense = self.dense
        dense.ops.moe_mlp(
            x,
            dense.norm,
            dense.gate,
            dense.up,
            dense.down,
            self.dense_post_norm,
            self.experts,
            self.experts_norm,
            self.experts_post_norm,
            dense.post_norm,
            dense.eps,
        )


def _load_experts(config: ModelConfig, spec: LayerSpec, loader: WeightLoader) -> Experts:
    name = f"layers.{spec.index}."
    count, hidden, width = spec.num_experts, config.hidden_size, spec.expert_ffn_dim
    gate_up: list[Weight | tuple[Weight, Weight]]
    if name + "experts_gate_up" in loader:
        gate_up = list(loader.experts(name + "experts_gate_up", count, 2 * width, hidden))
    else:
        gate = loader.experts(name + "experts_gate", count, width, hidden)
        up = loader.experts(name + "experts_up", count, width, hidden)
        gate_up = list(zip(gate, up, strict=True))
    scale = np.ones(count, dtype=np.float32)
    if name + "expert_scale" in loader:
        scale = loader.values(name + "expert_scale", count)
    router_scale = loader.values(name + "router_scale", hidden) * np.float32(hidden**-0.5)
    return Experts(
        router=loader.linear(name + "router", count, hidden),
        router_scale=loader.ops.constant(router_scale),
        gate_up=gate_up,
        down=loader.experts(name + "experts_down", count, hidden, width),
        expert_scale=loader.ops.constant(scale),
        num_used=spec.num_experts_used,
    )


class PerLayerStep:
    """One layer's use of its per-layer input."""

    def __init__(self, config: ModelConfig, spec: LayerSpec, loader: WeightLoader) -> None:
        self.ops = loader.ops
        self.eps = config.rms_eps
        name = f"layers.{spec.index}."
        self.gate = loader.linear(name + "ple_gate", config.ple_dim, config.hidden_size)
        self.projection = loader.linear(name + "ple_proj", config.hidden_size, config.ple_dim)
        self.norm = loader.vector(name + "ple_norm", config.hidden_size)

    def run(self, x: Array, per_layer: Array) -> None:
        """x += the gated input, projected and normed."""
        self.ops.per_layer_step(x, per_layer, self.gate, self.projection, self.norm, self.eps)


class PerLayerInputs:
    """The per-layer table and the projection of the embedding, in two runs of layers.

    The projection is split by rows where rows of which nothing is wanted end: layers before the
    last owning one need every row's input, from there on only kept rows are needed.
    """

    def __init__(self, config: ModelConfig, loader: WeightLoader, placement: Placement) -> None:
        self.ops = loader.ops
        self.eps = config.rms_eps
        self.hidden_size = config.hidden_size
        self.width = config.ple_dim
        self.num_first = config.last_owning_layer
        self.num_rest = len(config.layers) - self.num_first
        total = len(config.layers) * config.ple_dim
        self.table = loader.table("per_layer_token_embd", config.ple_vocab_size, total, placement)
        self.first, rest = loader.linear_parts(
            "per_layer_model_proj",
            [self.num_first * self.width, self.num_rest * self.width],
            config.hidden_size,
        )
        assert rest is not None
        self.rest = rest
        self.norm = loader.vector("per_layer_proj_norm", self.width)

    def run_first(self, x: Array, step: Step) -> Array | None:
        """Inputs [n, last owning layer, ple_dim] of the layers before the last owning one."""
        if self.first is None:
            return None
        return self._run(x, step.token_ids, 0, self.num_first, self.first)

    def run_rest(self, x: Array, step: Step) -> Array | None:
        """Inputs [m, the other layers, ple_dim] of kept rows, from the last owning layer on."""
        num_kept = len(step.kept_rows)
        if not num_kept:
            return None
        if num_kept < len(step.token_ids):
            everything, x = x, self.ops.empty(num_kept, self.hidden_size)
            self.ops.gather_rows(x, everything, step.kept_rows)
        token_ids = step.token_ids[step.kept_rows]
        return self._run(x, token_ids, self.num_first, self.num_rest, self.rest)

    def _run(
        self, x: Array, token_ids: Int32Array, first_layer: int, num_layers: int, part: Weight
    ) -> Array:
        out = self.ops.empty(len(token_ids), num_layers, self.width)
        self.ops.per_layer_inputs(
            out, self.table, token_ids, first_layer, x, part, self.norm, self.eps
        )
        return out


class Layer:
    """Attention, feed-forward, per-layer input, and the factor on the whole residual."""

    def __init__(self, config: ModelConfig, spec: LayerSpec, loader: WeightLoader) -> None:
        self.ops = loader.ops
        self.attention = Attention(config, spec, loader)
        self.mlp = (MoeMlp if spec.num_experts else GatedMlp)(config, spec, loader)
        self.per_layer = PerLayerStep(config, spec, loader) if config.ple_dim else None
        scale = f"layers.{spec.index}.layer_scale"
        self.scale = float(loader.values(scale, 1)[0]) if scale in loader else 1.0

    def run_after_attention(
        self, x: Array, rows: Rows, per_layer: Array | None, scratch: Scratch
    ) -> None:
        """The rest of the layer, for rows that the attention block has run for."""
        self.mlp.run(x, rows, scratch)
        if self.per_layer is not None:
            self.per_layer.run(x, per_layer)
        if self.scale != 1.0:
            self.ops.scale(x, self.scale)


class Gemma4:
    """A loaded Gemma 4 text model; see `Model`."""

    def __init__(
        self, config: ModelConfig, loader: WeightLoader, ple_placement: Placement = "host"
    ) -> None:
        self.config = config
        self.ops: Ops = loader.ops
        self.head = Head(config, loader)
        self.inputs = PerLayerInputs(config, loader, ple_placement) if config.ple_dim else None
        self.ropes = RopeTables(config, self.ops)
        if "rope_freqs" in loader:  # its values are in config.ropes already
            loader.tensor("rope_freqs", config.ropes["full"].head_dim // 2)
        self.layers = [Layer(config, spec, loader) for spec in config.layers]

    def forward(self, step: Step, kv: Mapping[int, KvLayer]) -> StepOutput:
        """Enqueue one step; see `Model.forward`."""
        last = self.config.last_owning_layer
        scratch = Scratch(self.ops)
        x = self.head.embed(step)
        rows = self.ropes.all_rows(step)
        kept = self.ropes.kept_rows(step, rows)
        first = rest = None
        if self.inputs is not None:
            # Both before the first layer: they are made of x as it is embedded.
            first = self.inputs.run_first(x, step)
            rest = self.inputs.run_rest(x, step)

        for index in range(last):
            per_layer = first[:, index] if first is not None else None
            self._run_layer(index, x, rows, per_layer, kv, scratch)
        attention = self.layers[last].attention
        x = attention.run_last_owner(x, rows, kept, step, kv[last], scratch)
        if not kept.num_rows:
            return self.head.output(x, step)
        per_layer = rest[:, 0] if rest is not None else None
        self.layers[last].run_after_attention(x, kept, per_layer, scratch)
        for index in range(last + 1, len(self.layers)):
            per_layer = rest[:, index - last] if rest is not None else None
            self._run_layer(index, x, kept, per_layer, kv, scratch)
        return self.head.output(x, step)

    def _run_layer(
        self,
        index: int,
        x: Array,
        rows: Rows,
        per_layer: Array | None,
        kv: Mapping[int, KvLayer],
        scratch: Scratch,
    ) -> None:
        layer = self.layers[index]
        layer.attention.run(x, rows, kv[self.config.layers[index].kv_owner], scratch)
        layer.run_after_attention(x, rows, per_layer, scratch)
