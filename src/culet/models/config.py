"""Frozen model configs and the per-layer rows that all forward code reads.

Every per-layer fact is decided here, once, from GGUF metadata or a HF config; scalars and lists are
both accepted here and only here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

AttentionKind = Literal["sliding", "full"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of one attention kind.

    Attributes:
        base: theta.
        head_dim: width of a head; pair i is lanes (i, i + head_dim/2).
        position_scale: factor on positions (1/8 on Gemma 3's full layers from 4B up).
        rotary_fraction: share of the pairs that rotate (0.25 with Gemma 4's proportional RoPE,
            whose exponent divides by the whole head_dim); the rest have frequency 0.
    """

    base: float
    head_dim: int
    position_scale: float = 1.0
    rotary_fraction: float = 1.0

    def inverse_frequencies(self) -> NDArray[np.float32]:
        """float32 [head_dim/2]: base^(-2i/head_dim) * position_scale, 0 where nothing rotates."""
        half = self.head_dim // 2
        exponent = np.arange(half, dtype=np.float32) * np.float32(2.0) / np.float32(self.head_dim)
        inv = (1.0 / np.float32(self.base) ** exponent).astype(np.float32)
        inv *= np.float32(self.position_scale)
        inv[int(self.rotary_fraction * half) :] = 0.0
        return inv


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """All facts of one layer.

    Attributes:
        kv_owner: index of the layer whose K/V this one reads; its own index if it owns K/V.
        window: tokens that a sliding layer sees, itself included; None on full layers.
        value_is_key: V is the raw K projection (no v_proj in the file).
        ffn_dim: width of the (dense) MLP.
        num_experts: 0 for a dense layer.
    """

    index: int
    attention: AttentionKind
    window: int | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_owner: int
    value_is_key: bool
    ffn_dim: int
    num_experts: int = 0
    num_experts_used: int = 0
    expert_ffn_dim: int = 0

    @property
    def owns_kv(self) -> bool:
        return self.kv_owner == self.index


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model, as forward code sees it.

    Attributes:
        embed_scale: factor on looked-up token embeddings, sqrt(hidden_size).
        attention_scale: factor on q.k.
        ple_dim: width of a layer's slice of the per-layer table; 0 without one.
        logit_softcap: c of c * tanh(z / c) on logits, None without.
    """

    architecture: Literal["gemma4", "gemma3"]
    hidden_size: int
    vocab_size: int
    context_length: int
    rms_eps: float
    embed_scale: float
    attention_scale: float
    logit_softcap: float | None
    ple_dim: int
    ple_vocab_size: int
    layers: tuple[LayerSpec, ...]
    ropes: dict[AttentionKind, RopeSpec]

    @property
    def last_owning_layer(self) -> int:
        """Index of the last layer with K/V of its own; rows of which nothing is wanted end there."""
        return max(s.index for s in self.layers if s.owns_kv)
