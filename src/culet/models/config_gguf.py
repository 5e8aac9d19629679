"""ModelConfig from the metadata of a GGUF file, for the architectures `gemma4` and `gemma3`.

Keys and defaults are llama.cpp's (src/models/gemma4.cpp, gemma3.cpp, llama-model.cpp). Of tensors,
only names and shapes are looked at, where the format has no key for a fact.
"""

from __future__ import annotations

import math

import numpy as np

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
from culet.quant.blocks import decode

# llama.cpp's default where a file does not say.
_LOCAL_ROPE_BASE = 10000.0
_GEMMA3_PERIOD = 6
# Gemma 3 27B, recognised by llama.cpp by its layers, scales scores by (hidden / heads)^-0.5 and
# not by head_dim^-0.5; files have no key for it.
_GEMMA3_27B_LAYERS = 62
# A divisor from here on says that the pair does not rotate (converters write 1e30).
_NO_ROTATION = 1e20


def config_from_gguf(checkpoint: Checkpoint) -> ModelConfig:
    """The config of a GGUF file.

    Raises:
        ModelFileError: a key is missing or has an impossible value.
        UnsupportedModelError: a sound file that isn't served.
    """
    label = str(checkpoint.path)
    if checkpoint.architecture == "gemma4":
        return _gemma4(checkpoint, Fields(checkpoint.metadata, label, "gemma4."))
    if checkpoint.architecture == "gemma3":
        return _gemma3(checkpoint, Fields(checkpoint.metadata, label, "gemma3."))
    raise UnsupportedModelError(
        f"{label}: architecture {checkpoint.architecture!r} is not served; gemma4 and gemma3 are"
    )


def _gemma4(checkpoint: Checkpoint, fields: Fields) -> ModelConfig:
    names = frozenset(checkpoint.tensor_names())
    count = fields.integer("block_count")
    kinds = _kinds(fields, count)
    shared_key = "attention.shared_kv_layers"
    num_shared = fields.integer(shared_key, default=0, minimum=0)
    owners = kv_owners(kinds, num_shared, f"{fields.label}: {fields.prefix}{shared_key}")
    head_dims: dict[AttentionKind, int] = {
        "full": _head_dim(fields, ""),
        "sliding": _head_dim(fields, "_swa") if "sliding" in kinds else 0,
    }
    window = fields.integer("attention.sliding_window") if "sliding" in kinds else 0
    heads = fields.per_layer("attention.head_count", count)
    kv_heads = fields.per_layer("attention.head_count_kv", count)
    ffn_dims = fields.per_layer("feed_forward_length", count)
    value_is_key = _values_are_keys(kinds, owners, names)
    num_experts = fields.integer("expert_count", default=0, minimum=0)
    num_used = fields.integer("expert_used_count") if num_experts else 0
    expert_dims = fields.per_layer("expert_feed_forward_length", count) if num_experts else []

    layers = []
    for i, kind in enumerate(kinds):
        routed = num_experts > 0 and f"blk.{i}.ffn_gate_inp.weight" in names
        layers.append(
            LayerSpec(
                index=i,
                attention=kind,
                window=window if kind == "sliding" else None,
                num_heads=heads[i],
                num_kv_heads=kv_heads[i],
                head_dim=head_dims[kind],
                kv_owner=owners[i],
                value_is_key=value_is_key[i],
                ffn_dim=ffn_dims[i],
                num_experts=num_experts if routed else 0,
                num_experts_used=num_used if routed else 0,
                expert_ffn_dim=expert_dims[i] if routed else 0,
            )
        )
    ropes: dict[AttentionKind, RopeSpec] = {}
    if "full" in kinds:
        ropes["full"] = _full_rope(checkpoint, fields, head_dims["full"], names)
    if "sliding" in kinds:
        base = fields.number("rope.freq_base_swa", default=_LOCAL_ROPE_BASE)
        ropes["sliding"] = RopeSpec(base, head_dims["sliding"])
    ple_dim = fields.integer("embedding_length_per_layer_input", minimum=0)
    ple_vocab_size = 0
    if ple_dim:
        ple_vocab_size = checkpoint.info("per_layer_token_embd.weight").shape[0]
    return _finish(checkpoint, fields, "gemma4", layers, ropes, 1.0, ple_dim, ple_vocab_size)


def _gemma3(checkpoint: Checkpoint, fields: Fields) -> ModelConfig:
    count = fields.integer("block_count")
    windowed = "attention.sliding_window" in fields and fields.raw("attention.sliding_window") != 0
    window = fields.integer("attention.sliding_window") if windowed else 0
    kinds: list[AttentionKind] = ["full"] * count
    if windowed:
        kinds = _kinds(fields, count, _GEMMA3_PERIOD)
    heads = fields.per_layer("attention.head_count", count)
    kv_heads = fields.per_layer("attention.head_count_kv", count)
    ffn_dims = fields.per_layer("feed_forward_length", count)
    head_dim = _head_dim(fields, "")
    layers = [
        LayerSpec(
            index=i,
            attention=kind,
            window=window if kind == "sliding" else None,
            num_heads=heads[i],
            num_kv_heads=kv_heads[i],
            head_dim=head_dim,
            kv_owner=i,
            value_is_key=False,
            ffn_dim=ffn_dims[i],
        )
        for i, kind in enumerate(kinds)
    ]
    ropes: dict[AttentionKind, RopeSpec] = {}
    if "full" in kinds:
        base = fields.number("rope.freq_base")
        ropes["full"] = RopeSpec(base, head_dim, position_scale=1.0 / _linear_factor(fields))
    if "sliding" in kinds:
        base = fields.number("rope.freq_base_swa", default=_LOCAL_ROPE_BASE)
        ropes["sliding"] = RopeSpec(base, head_dim)
    score_width = head_dim
    if count == _GEMMA3_27B_LAYERS:
        score_width = fields.integer("embedding_length") // heads[0]
    scale = fields.number("attention.scale", default=score_width**-0.5)
    return _finish(checkpoint, fields, "gemma3", layers, ropes, scale, 0, 0)


def _finish(
    checkpoint: Checkpoint,
    fields: Fields,
    architecture: Architecture,
    layers: list[LayerSpec],
    ropes: dict[AttentionKind, RopeSpec],
    attention_scale: float,
    ple_dim: int,
    ple_vocab_size: int,
) -> ModelConfig:
    """The rest, which both architectures have alike."""
    check_layers(layers, fields.label)
    hidden_size = fields.integer("embedding_length")
    softcap = None
    key = "final_logit_softcapping"
    if key in fields and fields.raw(key) != 0:  # 0 stands for none, as in llama.cpp
        softcap = fields.number(key)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        vocab_size=checkpoint.info("token_embd.weight").shape[0],
        context_length=fields.integer("context_length"),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        embed_scale=math.sqrt(hidden_size),
        attention_scale=attention_scale,
        logit_softcap=softcap,
        ple_dim=ple_dim,
        ple_vocab_size=ple_vocab_size,
        layers=tuple(layers),
        ropes=ropes,
    )


def _kinds(fields: Fields, count: int, default_period: int | None = None) -> list[AttentionKind]:
    """Each layer's attention kind, from a list of bools (true: sliding) or from a period."""
    key = "attention.sliding_window_pattern"
    if fields.is_list(key):
        return ["sliding" if sliding else "full" for sliding in fields.items(key, count)]
    period = fields.integer(key, default=default_period)
    return ["full" if (i + 1) % period == 0 else "sliding" for i in range(count)]


def _head_dim(fields: Fields, suffix: str) -> int:
    width = fields.integer(f"attention.key_length{suffix}")
    values = fields.integer(f"attention.value_length{suffix}", default=width)
    if values != width:
        raise fields.error(
            f"attention.value_length{suffix}", values, f"key_length{suffix} is {width}"
        )
    return width


def _values_are_keys(
    kinds: list[AttentionKind], owners: list[int], names: frozenset[str]
) -> list[bool]:
    """Whether each layer's V is its raw K: no owning full layer has a V projection of its own.

    GGUF has no key for it. A V that only some layers lack, or that a sliding layer lacks, is not
    this but a damaged file, and is reported as a missing tensor when weights are bound.
    """
    full_owners = [i for i, kind in enumerate(kinds) if kind == "full" and owners[i] == i]
    lacking = all(
        f"blk.{i}.attn_v.weight" not in names and f"blk.{i}.attn_qkv.weight" not in names
        for i in full_owners
    )
    return [lacking and kind == "full" and owners[i] == i for i, kind in enumerate(kinds)]


def _full_rope(
    checkpoint: Checkpoint, fields: Fields, head_dim: int, names: frozenset[str]
) -> RopeSpec:
    """Rotary embedding of Gemma 4's full layers; `rope_freqs` says which pairs rotate."""
    base = fields.number("rope.freq_base")
    if "rope_freqs.weight" not in names:
        # Without it all pairs would rotate, which no Gemma 4 does.
        raise ModelFileError(f"{fields.label}: tensor rope_freqs.weight is missing")
    if not checkpoint.has_data("rope_freqs.weight"):
        # A file that was cut off after its header can be described, but not loaded.
        return RopeSpec(base, head_dim)
    divisors = decode(checkpoint.tensor("rope_freqs.weight")).reshape(-1)
    if len(divisors) != head_dim // 2:
        raise ModelFileError(
            f"{fields.label}: tensor rope_freqs.weight has {len(divisors)} values; "
            f"half of {fields.prefix}attention.key_length is {head_dim // 2}"
        )
    if not (divisors > 0).all():
        raise ModelFileError(
            f"{fields.label}: tensor rope_freqs.weight has values that are not greater than 0"
        )
    still = divisors >= _NO_ROTATION
    num_rotated = int(np.argmax(still)) if still.any() else len(divisors)
    if still[num_rotated:].all() and (divisors[:num_rotated] == 1.0).all():
        return RopeSpec(base, head_dim, num_rotated_pairs=num_rotated)
    # Divisors of 1e20 make the angle vanish in float32 at any position.
    return RopeSpec(base, head_dim, divisors=tuple(float(d) for d in divisors))


def _linear_factor(fields: Fields) -> float:
    """Factor of linear position scaling, 1 without; of the full layers only.

    Raises:
        UnsupportedModelError: another kind of scaling.
    """
    if "rope.scaling.type" not in fields:
        return fields.number("rope.scale_linear", default=1.0)  # the key of old files
    kind = fields.raw("rope.scaling.type")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise UnsupportedModelError(
            f"{fields.label}: {fields.prefix}rope.scaling.type is {kind!r}; linear and none are "
            "served"
        )
    return fields.number("rope.scaling.factor")
