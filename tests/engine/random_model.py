"""A random tiny E-series model without any file, on the fastest backend that is built."""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np

from culet.errors import BackendError
from culet.formats.gguf_writer import float_tensor
from culet.models.base import Model
from culet.models.config import AttentionKind, LayerSpec, ModelConfig, RopeSpec
from culet.models.gemma4 import Gemma4
from culet.models.weights import WeightLoader
from culet.ops.interface import Ops
from culet.ops.select import load_ops
from culet.quant.tensor import QTensor

WINDOW = 24
VOCAB = 640  # more than one block of `sampler.largest`
_KINDS: tuple[AttentionKind, ...] = ("sliding", "sliding", "full", "sliding", "sliding", "full")
_OWNERS = (0, 1, 2, 1, 1, 2)


def tiny_config(window: int = WINDOW) -> ModelConfig:
    """Six layers of which three own K/V, per-layer inputs, double-wide MLPs in shared layers."""
    layers = tuple(
        LayerSpec(
            index=index,
            attention=kind,
            window=window if kind == "sliding" else None,
            num_heads=2,
            num_kv_heads=1,
            head_dim=64 if kind == "full" else 32,
            kv_owner=owner,
            value_is_key=False,
            ffn_dim=32 if owner == index else 64,
        )
        for index, (kind, owner) in enumerate(zip(_KINDS, _OWNERS, strict=True))
    )
    return ModelConfig(
        architecture="gemma4",
        hidden_size=32,
        vocab_size=VOCAB,
        context_length=4096,
        rms_eps=1e-6,
        embed_scale=32**0.5,
        attention_scale=1.0,
        logit_softcap=30.0,
        ple_dim=8,
        ple_vocab_size=VOCAB,
        layers=layers,
        ropes={
            "full": RopeSpec(1e6, 64, num_rotated_pairs=8),
            "sliding": RopeSpec(1e4, 32),
        },
    )


class RandomWeights(WeightLoader):
    """Makes every tensor that a model asks for, the same for the same name."""

    def __init__(self, ops: Ops) -> None:
        super().__init__(ops, (), lambda name: self._read(name), lambda name: None, "random")

    def __contains__(self, name: str) -> bool:
        return False  # nothing optional

    def tensor(self, name: str, *shape: int) -> QTensor:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if "norm" in name:
            # The output norm's size is that of the logits: far enough apart for varied text.
            values = rng.normal(4.0 if name == "output_norm" else 1.0, 0.3, shape)
        else:
            values = rng.normal(0.0, shape[-1] ** -0.5, shape)
        if "q_norm" in name or "k_norm" in name:
            values *= shape[0] ** -0.25  # scores of a standard deviation near 1
        return float_tensor(name, values.astype(np.float32))


@cache
def tiny_model(threads: int = 2) -> tuple[Model, Ops]:
    """The model and its backend; `cpu` if it is built, else `reference`."""
    try:
        ops = load_ops("cpu", threads=threads)
    except BackendError:
        ops = load_ops("reference")
    return Gemma4(tiny_config(), RandomWeights(ops)), ops
