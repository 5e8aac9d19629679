"""ModelConfig from the text part of a Hugging Face config.json, `gemma4` and `gemma3`.

Keys and defaults are transformers' (Gemma4TextConfig, Gemma3TextConfig): config.json leaves out
what equals a default.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from culet.errors import ModelFileError, UnsupportedModelError
from culet.formats.checkpoint import Checkpoint
from culet.models.config import (
    Architecture,
    AttentionKind,
    LayerSpec,
    ModelConfig,
    RopeSpec,
    check_layers,
    kv_owners,
)
from culet.models.fields import Fields

_log = logging.getLogger("culet")

_KIND_NAMES: dict[str, AttentionKind] = {
    "sliding_attention": "sliding",
    "full_attention": "full",
}
_HF_NAMES: dict[AttentionKind, str] = {kind: name for name, kind in _KIND_NAMES.items()}
_PERIOD = 6
_OVERRIDES = ("head_dim", "num_key_value_heads")
_GEMMA4_ROPES: dict[str, dict[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1000000.0,
    },
}


def config_from_hf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a safetensors folder.

    Raises:
        ModelFileError: a key is missing or has an impossible value.
        UnsupportedModelError: a sound config that isn't served.
    """
    label = f"{checkpoint.path}: config.json"
    fields = Fields(checkpoint.metadata, label)
    if checkpoint.architecture not in ("gemma4", "gemma3"):
        raise UnsupportedModelError(
            f"{label}: architecture {checkpoint.architecture!r} is not served; "
            "gemma4 and gemma3 are"
        )
    _refuse_unserved(fields)
    return _gemma4(fields) if checkpoint.architecture == "gemma4" else _gemma3(fields)


def is_head_tied(checkpoint: Checkpoint) -> bool:
    """Whether the token embedding is the LM head as well (always so in Google's own models)."""
    return bool(checkpoint.metadata.get("tie_word_embeddings", True))


def _refuse_unserved(fields: Fields) -> None:
    """Refuse by name what would need other arithmetic than ours."""
    served: dict[str, tuple[Any, ...]] = {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "attention_bias": (False,),
        "attn_logit_softcapping": (),
        "use_bidirectional_attention": (False, "vision"),
    }
    for key, allowed in served.items():
        if key in fields and fields.raw(key) not in allowed:
            names = [*map(repr, allowed), "null"]
            raise UnsupportedModelError(
                f"{fields.label}: {key} is {fields.raw(key)!r}; served are {', '.join(names)}"
            )


def _gemma4(fields: Fields) -> ModelConfig:
    count = fields.integer("num_hidden_layers")
    kinds = _kinds(fields, count, _PERIOD)
    if kinds[-1] != "full":
        # transformers does the same to such a config, so the weights were trained like this.
        _log.warning("%s: the last layer is sliding by config, taken as full", fields.label)
        kinds[-1] = "full"
    num_shared = fields.integer("num_kv_shared_layers", default=0, minimum=0)
    owners = kv_owners(kinds, num_shared, f"{fields.label}: num_kv_shared_layers")
    head_dims, kv_heads = _gemma4_heads(fields, kinds)
    num_heads = fields.integer("num_attention_heads", default=8)
    window = fields.integer("sliding_window", default=512)
    ffn_dim = fields.integer("intermediate_size")
    wide = fields.flag("use_double_wide_mlp")
    value_is_key = fields.flag("attention_k_eq_v")
    routed = fields.flag("enable_moe_block")
    layers = [
        LayerSpec(
            index=i,
            attention=kind,
            window=window if kind == "sliding" else None,
            num_heads=num_heads,
            num_kv_heads=kv_heads[i],
            head_dim=head_dims[i],
            kv_owner=owners[i],
            value_is_key=value_is_key and kind == "full" and owners[i] == i,
            ffn_dim=2 * ffn_dim if wide and owners[i] != i else ffn_dim,
            num_experts=fields.integer("num_experts") if routed else 0,
            num_experts_used=fields.integer("top_k_experts") if routed else 0,
            expert_ffn_dim=fields.integer("moe_intermediate_size") if routed else 0,
        )
        for i, kind in enumerate(kinds)
    ]
    check_layers(layers, fields.label)
    ropes = _ropes(fields, _mapping_or(fields, "rope_parameters", _GEMMA4_ROPES), layers)
    ple_dim = fields.integer("hidden_size_per_layer_input", default=256, minimum=0)
    ple_vocab_size = fields.integer("vocab_size_per_layer_input", default=262144) if ple_dim else 0
    return _finish(fields, "gemma4", layers, ropes, 1.0, ple_dim, ple_vocab_size, 262144)


def _gemma4_heads(fields: Fields, kinds: list[AttentionKind]) -> tuple[list[int], list[int]]:
    """Each layer's head_dim and number of K/V heads.

    Either `per_layer_config` has the full layers' values, or (as in Google's own files)
    `global_head_dim` and `num_global_key_value_heads` do.
    """
    head_dims = [fields.integer("head_dim", default=256)] * len(kinds)
    kv_heads = [fields.integer("num_key_value_heads", default=4)] * len(kinds)
    if "per_layer_config" in fields:
        for key, overrides in _mapping(fields, "per_layer_config").items():
            if not key.isdecimal() or int(key) >= len(kinds):
                raise fields.error("per_layer_config", key, f"the model has {len(kinds)} layers")
            layer = Fields(overrides, f"{fields.label}: per_layer_config[{key}]")
            unknown = sorted(set(overrides) - set(_OVERRIDES))
            if unknown:
                raise UnsupportedModelError(
                    f"{layer.label} overrides {unknown[0]}; served are {', '.join(_OVERRIDES)}"
                )
            head_dims[int(key)] = layer.integer("head_dim", default=head_dims[int(key)])
            kv_heads[int(key)] = layer.integer("num_key_value_heads", default=kv_heads[int(key)])
        return head_dims, kv_heads
    for i, kind in enumerate(kinds):
        if kind == "full":
            head_dims[i] = fields.integer("global_head_dim", default=512)
            if fields.flag("attention_k_eq_v"):
                kv_heads[i] = fields.integer("num_global_key_value_heads", default=kv_heads[i])
    return head_dims, kv_heads


def _gemma3(fields: Fields) -> ModelConfig:
    count = fields.integer("num_hidden_layers")
    kinds = _kinds(fields, count, fields.integer("sliding_window_pattern", default=_PERIOD))
    window = fields.integer("sliding_window", default=4096)
    head_dim = fields.integer("head_dim", default=256)
    layers = [
        LayerSpec(
            index=i,
            attention=kind,
            window=window if kind == "sliding" else None,
            num_heads=fields.integer("num_attention_heads", default=8),
            num_kv_heads=fields.integer("num_key_value_heads", default=4),
            head_dim=head_dim,
            kv_owner=i,
            value_is_key=False,
            ffn_dim=fields.integer("intermediate_size"),
        )
        for i, kind in enumerate(kinds)
    ]
    check_layers(layers, fields.label)
    ropes = _ropes(fields, _gemma3_rope_parameters(fields), layers)
    scale = fields.number("query_pre_attn_scalar", default=256.0) ** -0.5
    return _finish(fields, "gemma3", layers, ropes, scale, 0, 0, 262208)


def _gemma3_rope_parameters(fields: Fields) -> dict[str, dict[str, Any]]:
    """`rope_parameters` by kind, put together from the older keys where a file has those."""
    given = _mapping_or(fields, "rope_parameters", {})
    full = {"rope_type": "default", **(given.get("full_attention") or {})}
    sliding = {"rope_type": "default", **(given.get("sliding_attention") or {})}
    if "rope_scaling" in fields:
        scaling = _mapping(fields, "rope_scaling")
        full.update(scaling)
        # The oldest files call the type so.
        full["rope_type"] = scaling.get("rope_type", scaling.get("type", "default"))
    full.setdefault("rope_theta", fields.number("rope_theta", default=1000000.0))
    sliding.setdefault("rope_theta", fields.number("rope_local_base_freq", default=10000.0))
    return {"full_attention": full, "sliding_attention": sliding}


def _finish(
    fields: Fields,
    architecture: Architecture,
    layers: list[LayerSpec],
    ropes: dict[AttentionKind, RopeSpec],
    attention_scale: float,
    ple_dim: int,
    ple_vocab_size: int,
    default_vocab_size: int,
) -> ModelConfig:
    """The rest, which both architectures have alike."""
    hidden_size = fields.integer("hidden_size")
    softcap = None
    if "final_logit_softcapping" in fields:
        softcap = fields.number("final_logit_softcapping")
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        vocab_size=fields.integer("vocab_size", default=default_vocab_size),
        context_length=fields.integer("max_position_embeddings", default=131072),
        rms_eps=fields.number("rms_norm_eps", default=1e-6),
        embed_scale=math.sqrt(hidden_size),
        attention_scale=attention_scale,
        logit_softcap=softcap,
        ple_dim=ple_dim,
        ple_vocab_size=ple_vocab_size,
        layers=tuple(layers),
        ropes=ropes,
    )


def _kinds(fields: Fields, count: int, period: int) -> list[AttentionKind]:
    if "layer_types" not in fields:
        return ["full" if (i + 1) % period == 0 else "sliding" for i in range(count)]
    names = fields.items("layer_types", count)
    for name in names:
        if name not in _KIND_NAMES:
            raise fields.error("layer_types", name, f"served are {', '.join(_KIND_NAMES)}")
    return [_KIND_NAMES[name] for name in names]


def _ropes(
    fields: Fields, parameters: Mapping[str, Any], layers: list[LayerSpec]
) -> dict[AttentionKind, RopeSpec]:
    """One RopeSpec for each attention kind that occurs."""
    ropes: dict[AttentionKind, RopeSpec] = {}
    for spec in layers:
        if spec.attention in ropes:
            continue
        name = _HF_NAMES[spec.attention]
        values = parameters.get(name)
        if not isinstance(values, Mapping):
            raise ModelFileError(f"{fields.label}: rope_parameters has no {name}")
        rope = Fields(values, f"{fields.label}: rope_parameters[{name}]")
        ropes[spec.attention] = _rope(rope, spec.head_dim)
    return ropes


def _rope(rope: Fields, head_dim: int) -> RopeSpec:
    base = rope.number("rope_theta")
    kind = rope.raw("rope_type")
    if kind == "default":
        return RopeSpec(base, head_dim)
    if kind == "linear":
        return RopeSpec(base, head_dim, position_scale=1.0 / rope.number("factor"))
    if kind == "proportional":
        share = rope.number("partial_rotary_factor", default=1.0)
        scale = 1.0 / rope.number("factor", default=1.0)
        # The same order of operations as transformers, which truncates.
        num_rotated = int(share * head_dim // 2)
        return RopeSpec(base, head_dim, position_scale=scale, num_rotated_pairs=num_rotated)
    raise UnsupportedModelError(
        f"{rope.label}: rope_type is {kind!r}; served are default, linear and proportional"
    )


def _mapping(fields: Fields, key: str) -> dict[str, Any]:
    value = fields.raw(key)
    if not isinstance(value, Mapping):
        raise fields.error(key, value, "it must be an object")
    return dict(value)


def _mapping_or(fields: Fields, key: str, default: dict[str, Any]) -> dict[str, Any]:
    """An object, or the default where it is absent or null."""
    return _mapping(fields, key) if key in fields else default
