"""Gemma 3 text, 270M to 27B: every layer owns K/V; sliding and full layers differ in RoPE.

Arithmetic as in transformers' modeling_gemma3.py, float32 throughout. Norm weights come as the
factor itself (files of Hugging Face hold it less 1, which the names table accounts for).
"""

from __future__ import annotations

from collections.abc import Mapping

from culet.models.base import Step, StepOutput
from culet.models.config import LayerSpec, ModelConfig
from culet.models.layers import Attention, Head, RopeTables, Scratch
from culet.models.weights import WeightLoader
from culet.ops.interface import Array, KvLayer, Ops


class Mlp:
    """The gated feed-forward block."""

    def __init__(self, config: ModelConfig, spec: LayerSpec, loader: WeightLoader) -> None:
        self.ops = loader.ops
        self.eps = config.rms_eps
        self.width = spec.ffn_dim
        name = f"layers.{spec.index}."
        hidden = config.hidden_size
        self.norm = loader.vector(name + "ffn_norm", hidden)
        self.gate = loader.linear(name + "ffn_gate", spec.ffn_dim, hidden)
        self.up = loader.linear(name + "ffn_up", spec.ffn_dim, hidden)
        self.down = loader.linear(name + "ffn_down", hidden, spec.ffn_dim)
        self.post_norm = loader.vector(name + "post_ffw_norm", hidden)

    def run(self, x: Array, num_rows: int, scratch: Scratch) -> None:
        """x += the block's output."""
        gated = scratch.take("gated", num_rows, self.width)
        self.ops.gate_up(gated, x, self.norm, self.eps, self.gate, self.up)
        self.ops.linear_norm_add(x, gated, self.down, self.post_norm, self.eps)


class Gemma3:
    """A loaded Gemma 3 text model; see `Model`."""

    def __init__(self, config: ModelConfig, loader: WeightLoader) -> None:
        self.config = config
        self.ops: Ops = loader.ops
        self.head = Head(config, loader)
        self.ropes = RopeTables(config, self.ops)
        self.attention = [Attention(config, spec, loader) for spec in config.layers]
        self.mlp = [Mlp(config, spec, loader) for spec in config.layers]

    def forward(self, step: Step, kv: Mapping[int, KvLayer]) -> StepOutput:
        """Enqueue one step; see `Model.forward`. Rows end in the last layer, which owns K/V."""
        ops, last = self.ops, len(self.config.layers) - 1
        num_rows, num_kept = len(step.token_ids), len(step.kept_rows)
        scratch = Scratch(ops)
        x = self.head.embed(step.token_ids)
        if step.embedding_rows is not None and step.embeddings is not None:
            ops.scatter_rows(x, ops.constant(step.embeddings), step.embedding_rows)
        rows = self.ropes.rows(step.positions, step.pages)
        for index in range(last):
            self.attention[index].run(x, rows, kv[index], scratch)
            self.mlp[index].run(x, num_rows, scratch)

        if num_kept == num_rows:
            self.attention[last].run(x, rows, kv[last], scratch)
        else:
            self.attention[last].run_kv(x, rows, kv[last], scratch)
            if not num_kept:
                return StepOutput(hidden=ops.empty(0, self.config.hidden_size), logits=None)
            everything, x = x, ops.empty(num_kept, self.config.hidden_size)
            ops.gather_rows(x, everything, step.kept_rows)
            kept = self.ropes.rows(step.positions[step.kept_rows], step.kept_pages)
            self.attention[last].run_q(x, kept, kv[last], scratch)
        self.mlp[last].run(x, num_kept, scratch)

        hidden = self.head.hidden(x)
        logits = self.head.logits(hidden, step.wants_logits) if len(step.wants_logits) else None
        return StepOutput(hidden=hidden, logits=logits)
