"""GGUF metadata of a ModelConfig: what llama.cpp's converter writes, the inverse of config_gguf."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from culet.errors import UnsupportedModelError
from culet.models.config import AttentionKind, ModelConfig, RopeSpec

_NO_ROTATION = 1e30


def gguf_metadata(config: ModelConfig, label: str) -> dict[str, Any]:
    """Key-values of the architecture; lists where layers differ.

    Raises:
        UnsupportedModelError: GGUF has no key for a fact of this config.
    """
    layers = config.layers
    keys: dict[str, Any] = {
        "block_count": len(layers),
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "feed_forward_length": _one_or_list([spec.ffn_dim for spec in layers]),
        "attention.head_count": _one_or_list([spec.num_heads for spec in layers]),
        "attention.head_count_kv": _one_or_list([spec.num_kv_heads for spec in layers]),
        "attention.layer_norm_rms_epsilon": float(config.rms_eps),
        "attention.sliding_window_pattern": [spec.attention == "sliding" for spec in layers],
    }
    windows = {spec.window for spec in layers if spec.window is not None}
    if len(windows) > 1:
        raise UnsupportedModelError(f"{label}: windows differ between layers: {sorted(windows)}")
    if windows:
        keys["attention.sliding_window"] = windows.pop()
    if config.logit_softcap is not None:
        keys["final_logit_softcapping"] = float(config.logit_softcap)
    keys |= _gemma4(config) if config.architecture == "gemma4" else _gemma3(config)
    return {f"{config.architecture}.{key}": value for key, value in keys.items()}


def rope_divisors(config: ModelConfig) -> NDArray[np.float32] | None:
    """Values of Gemma 4's `rope_freqs` tensor, float32 [head_dim / 2]; None for other models."""
    rope = config.ropes.get("full")
    if config.architecture != "gemma4" or rope is None:
        return None
    half = rope.head_dim // 2
    if rope.divisors is not None:
        return np.array(rope.divisors, dtype=np.float32)
    num_rotated = half if rope.num_rotated_pairs is None else rope.num_rotated_pairs
    return np.array([1.0] * num_rotated + [_NO_ROTATION] * (half - num_rotated), np.float32)


def same_as_stored(a: ModelConfig, b: ModelConfig) -> bool:
    """Whether two configs are one, with floats as a GGUF file holds them (float32)."""
    return _rounded(a) == _rounded(b)


def _gemma4(config: ModelConfig) -> dict[str, Any]:
    layers = config.layers
    dims = _head_dims(config)
    keys: dict[str, Any] = {
        "attention.shared_kv_layers": sum(not spec.owns_kv for spec in layers),
        "embedding_length_per_layer_input": config.ple_dim,
    }
    for suffix, kind in (("", "full"), ("_swa", "sliding")):
        if kind in dims:
            width = dims[kind]
            keys[f"attention.key_length{suffix}"] = width
            keys[f"attention.value_length{suffix}"] = width
            keys[f"rope.freq_base{suffix}"] = float(config.ropes[kind].base)
            keys[f"rope.dimension_count{suffix}"] = width
    routed = [spec for spec in layers if spec.num_experts]
    if routed:
        keys["expert_count"] = routed[0].num_experts
        keys["expert_used_count"] = routed[0].num_experts_used
        keys["expert_feed_forward_length"] = routed[0].expert_ffn_dim
    return keys


def _gemma3(config: ModelConfig) -> dict[str, Any]:
    width = config.layers[0].head_dim
    keys: dict[str, Any] = {
        "attention.key_length": width,
        "attention.value_length": width,
        "attention.scale": float(config.attention_scale),
    }
    full, sliding = config.ropes.get("full"), config.ropes.get("sliding")
    if full is not None:
        keys["rope.freq_base"] = float(full.base)
        if full.position_scale != 1.0:
            keys["rope.scaling.type"] = "linear"
            keys["rope.scaling.factor"] = 1.0 / full.position_scale
    if sliding is not None:
        keys["rope.freq_base_swa"] = float(sliding.base)
    return keys


def _head_dims(config: ModelConfig) -> dict[AttentionKind, int]:
    return {spec.attention: spec.head_dim for spec in config.layers}


def _one_or_list(values: list[int]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else values


def _rounded(config: ModelConfig) -> ModelConfig:
    def stored(value: float | None) -> float | None:
        return None if value is None else float(np.float32(value))

    def rope(spec: RopeSpec) -> RopeSpec:
        half = spec.head_dim // 2
        rotated = half if spec.num_rotated_pairs is None else spec.num_rotated_pairs
        return replace(
            spec,
            base=float(np.float32(spec.base)),
            position_scale=float(np.float32(spec.position_scale)),
            num_rotated_pairs=rotated,
        )

    return replace(
        config,
        rms_eps=float(np.float32(config.rms_eps)),
        attention_scale=float(np.float32(config.attention_scale)),
        logit_softcap=stored(config.logit_softcap),
        ropes={kind: rope(spec) for kind, spec in config.ropes.items()},
    )
