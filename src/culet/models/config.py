"""Frozen model configs and the per-layer rows that all forward code reads.

Every per-layer fact is decided once, in `config_gguf` or `config_hf`, from GGUF metadata or a HF
config; scalars and lists are both accepted there and only there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from culet.errors import ModelFileError, UnsupportedModelError

AttentionKind = Literal["sliding", "full"]
Architecture = Literal["gemma4", "gemma3"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of one attention kind.

    Attributes:
        base: theta.
        head_dim: width of a head; pair i is lanes (i, i + head_dim/2).
        position_scale: factor on positions (1/8 on Gemma 3's full layers from 4B up).
        num_rotated_pairs: pairs that rotate, counted from the first; None means all. The rest have
            frequency 0 (Gemma 4's proportional RoPE, whose exponent divides by the whole head_dim).
        divisors: one divisor of each pair's frequency (GGUF's `rope_freqs`), None for all 1.
    """

    base: float
    head_dim: int
    position_scale: float = 1.0
    num_rotated_pairs: int | None = None
    divisors: tuple[float, ...] | None = None

    def inverse_frequencies(self) -> NDArray[np.float32]:
        """float32 [head_dim/2]: base^(-2i/head_dim) * position_scale / divisor, 0 past the rotated.

        The exponent is rounded to float32 before the power, as torch does; the power is exact.
        """
        half = self.head_dim // 2
        exponent = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        power = np.power(np.float64(self.base), exponent.astype(np.float64))
        with np.errstate(over="ignore"):  # beyond float32 is infinity: no rotation at all
            power = power.astype(np.float32)
        inverse = (np.float32(1.0) / power).astype(np.float32)
        inverse *= np.float32(self.position_scale)
        if self.divisors is not None:
            inverse /= np.asarray(self.divisors, dtype=np.float32)
        if self.num_rotated_pairs is not None:
            inverse[min(self.num_rotated_pairs, half) :] = 0.0
        return inverse


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
        ropes: rotary embedding of each attention kind that occurs.
    """

    architecture: Architecture
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
        """The last layer with K/V of its own; rows of which nothing is wanted end there."""
        return max(s.index for s in self.layers if s.owns_kv)

    @property
    def kinds(self) -> tuple[AttentionKind, ...]:
        """The attention kinds that occur."""
        present = {s.attention for s in self.layers}
        return tuple(k for k in _KINDS if k in present)

    def owning_layers(self, kind: AttentionKind) -> tuple[LayerSpec, ...]:
        """The layers of one attention kind that have K/V of their own."""
        return tuple(s for s in self.layers if s.owns_kv and s.attention == kind)


_KINDS: tuple[AttentionKind, ...] = ("sliding", "full")


def kv_owners(kinds: Sequence[AttentionKind], num_shared: int, key: str) -> list[int]:
    """The layer whose K/V each layer reads, when the last `num_shared` layers have none.

    A shared layer reads the last earlier owning layer of its own attention kind (transformers,
    `Gemma4TextConfig.kv_sharing_modes`). `key` is what the file calls `num_shared`.

    Raises:
        ModelFileError: more shared layers than layers.
        UnsupportedModelError: a shared layer has no owner to read from.
    """
    num_layers = len(kinds)
    if num_shared > num_layers:
        raise ModelFileError(f"{key} is {num_shared}, but the model has only {num_layers} layers")
    if num_shared == num_layers:
        raise UnsupportedModelError(
            f"{key} is {num_shared}, so that no layer has K/V of its own: "
            "this is a draft model for another model, not one that runs by itself"
        )
    first_shared = num_layers - num_shared
    owners: list[int] = []
    last_owner: dict[AttentionKind, int] = {}
    for index, kind in enumerate(kinds):
        if index < first_shared:
            last_owner[kind] = index
        elif kind not in last_owner:
            raise UnsupportedModelError(
                f"{key} is {num_shared}, but layer {index} is of kind {kind!r} and no layer of "
                "that kind before the shared ones has K/V of its own"
            )
        owners.append(last_owner[kind])
    return owners


def check_layers(layers: Sequence[LayerSpec], label: str) -> None:
    """Check what holds between fields and between layers, whatever format they came from.

    Args:
        label: the file, for messages.

    Raises:
        ModelFileError: heads don't divide, a head width is odd, widths differ within a kind, or a
            shared layer's K/V heads differ from its owner's.
    """
    head_dims: dict[AttentionKind, int] = {}
    for spec in layers:
        where = f"{label}: layer {spec.index}"
        if spec.num_heads % spec.num_kv_heads:
            raise ModelFileError(
                f"{where} has {spec.num_heads} attention heads, which is no multiple of "
                f"its {spec.num_kv_heads} K/V heads"
            )
        if spec.head_dim % 2:
            raise ModelFileError(
                f"{where} has heads of width {spec.head_dim}; the rotary embedding "
                "needs an even width"
            )
        if head_dims.setdefault(spec.attention, spec.head_dim) != spec.head_dim:
            raise ModelFileError(
                f"{where} has heads of width {spec.head_dim}, but earlier "
                f"{spec.attention} layers have {head_dims[spec.attention]}"
            )
        owner = layers[spec.kv_owner]
        if owner.num_kv_heads != spec.num_kv_heads:
            raise ModelFileError(
                f"{where} has {spec.num_kv_heads} K/V heads, but reads the K/V of layer "
                f"{owner.index}, which has {owner.num_kv_heads}"
            )
        if spec.num_experts and not 0 < spec.num_experts_used <= spec.num_experts:
            raise ModelFileError(
                f"{where} uses {spec.num_experts_used} of {spec.num_experts} experts; "
                f"1 to {spec.num_experts} are possible"
            )
