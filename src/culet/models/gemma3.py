"""Gemma 3 text, 270M to 27B: every layer owns K/V; sliding and full layers differ in RoPE.

Arithmetic as in transformers' modeling_gemma3.py, float32 throughout. Norm weights come as the
factor itself (files of Hugging Face hold it less 1, which the names table accounts for).
"""

from __future__ import annotations

from collections.abc import Mapping

from culet.models.base import Step, StepOutput
from culet.models.config import ModelConfig
from culet.models.layers import Attention, GatedMlp, Head, RopeTables, Scratch
from culet.models.weights import WeightLoader
from culet.ops.interface import KvLayer, Ops


class Gemma3:
    """A loaded Gemma 3 text model; see `Model`."""

    def __init__(self, config: ModelConfig, loader: WeightLoader) -> None:
        self.config = config
        self.ops: Ops = loader.ops
        self.head = Head(config, loader)
        self.ropes = RopeTables(config, self.ops)
        self.attention = [Attention(config, spec, loader) for spec in config.layers]
        self.mlp = [GatedMlp(config, spec, loader) for spec in config.layers]

    def forward(self, step: Step, kv: Mapping[int, KvLayer]) -> StepOutput:
        """Enqueue one step; see `Model.forward`. Rows end in the last layer, which owns K/V."""
        last = len(self.config.layers) - 1
        scratch = Scratch(self.ops)
        x = self.head.embed(step)
        rows = self.ropes.all_rows(step)
        for index in range(last):
            self.attention[index].run(x, rows, kv[index], scratch)
            self.mlp[index].run(x, rows, scratch)

        kept = self.ropes.kept_rows(step, rows)
        x = self.attention[last].run_last_owner(x, rows, kept, step, kv[last], scratch)
        if kept.num_rows:
            self.mlp[last].run(x, kept, scratch)
        return self.head.output(x, step)
