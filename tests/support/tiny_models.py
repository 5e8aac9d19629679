"""Tiny random models: made by transformers, saved as HF folders and as GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Gemma4ForCausalLM, Gemma4TextConfig

from culet.formats import names
from culet.formats.gguf_writer import float_tensor, write_gguf
from culet.quant.tensor import QTensor
from support.toy_vocabularies import gemma4_metadata

torch.set_num_threads(1)  # tiny tensors: threads cost more than they give

Float32Array = NDArray[np.float32]
_S, _F = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Tiny:
    """One model of the table: its architecture and the config values that differ from `BASE`."""

    name: str
    architecture: Literal["gemma4", "gemma3"]
    values: Mapping[str, Any] = field(default_factory=dict)


BASE: dict[str, dict[str, Any]] = {
    "gemma4": {
        "vocab_size": 96,
        "vocab_size_per_layer_input": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 6,
        "layer_types": [_S, _S, _F, _S, _S, _F],
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 8,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": 8,
        "query_pre_attn_scalar": 16,
    },
}
_NO_PLE = {"hidden_size_per_layer_input": 0}
_NO_SHARE = {"num_kv_shared_layers": 0, "use_double_wide_mlp": False}
_MOE = {
    "enable_moe_block": True,
    "num_experts": 5,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
}

CONFIGS = (
    Tiny("e-series", "gemma4"),
    Tiny("e-series, one shared layer", "gemma4", {"num_kv_shared_layers": 1}),
    Tiny("e-series, two shared layers", "gemma4", {"num_kv_shared_layers": 2}),
    # Owners in the order full, sliding, with the sliding one last.
    Tiny(
        "e-series, many shared, sliding owner last",
        "gemma4",
        {
            "layer_types": [_F, _S, _F, _S, _S, _F, _S, _F],
            "num_hidden_layers": 8,
            "num_kv_shared_layers": 6,
        },
    ),
    Tiny(
        "e-series, owners far apart",
        "gemma4",
        {"layer_types": [_F, _S, _S, _S, _S, _F], "num_kv_shared_layers": 2},
    ),
    Tiny(
        "e-series, first layer is the last owner",
        "gemma4",
        {"layer_types": [_F] * 6, "num_kv_shared_layers": 5},
    ),
    Tiny("e-series, plain width", "gemma4", {"use_double_wide_mlp": False}),
    Tiny("shared K/V without per-layer inputs", "gemma4", _NO_PLE),
    Tiny("per-layer inputs without sharing", "gemma4", _NO_SHARE),
    Tiny("dense", "gemma4", _NO_PLE | _NO_SHARE),
    Tiny(
        "dense, k = v, fewer global heads",
        "gemma4",
        _NO_PLE
        | _NO_SHARE
        | {"attention_k_eq_v": True, "num_key_value_heads": 2, "num_global_key_value_heads": 1},
    ),
    Tiny("mixture of experts", "gemma4", _NO_PLE | _NO_SHARE | _MOE),
    Tiny(
        "mixture of experts, k = v",
        "gemma4",
        _NO_PLE | _NO_SHARE | _MOE | {"attention_k_eq_v": True},
    ),
    Tiny(
        "odd sizes",
        "gemma4",
        {
            "hidden_size": 40,
            "num_attention_heads": 3,
            "head_dim": 10,
            "global_head_dim": 22,
            "intermediate_size": 27,
            "hidden_size_per_layer_input": 5,
            "vocab_size": 67,
            "vocab_size_per_layer_input": 67,
        },
    ),
    Tiny("window longer than the prompt", "gemma4", {"sliding_window": 600}),
    Tiny("no soft cap", "gemma4", {"final_logit_softcapping": None}),
    Tiny("gemma 3", "gemma3"),
    Tiny(
        "gemma 3, scaled rope",
        "gemma3",
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "num_key_value_heads": 2},
    ),
    Tiny(
        "gemma 3, odd sizes",
        "gemma3",
        {
            "hidden_size": 33,
            "num_attention_heads": 3,
            "intermediate_size": 27,
            "head_dim": 10,
            "query_pre_attn_scalar": 10,
        },
    ),
)


def make_model(tiny: Tiny, seed: int = 0, embed_gain: float = 3.0) -> Any:
    """A transformers model in float32 with eager attention and random weights of every kind.

    Linears keep the size of what they are given; norm weights and layer factors differ from 1.
    Logits have a standard deviation of about `embed_gain`.
    """
    values = BASE[tiny.architecture] | dict(tiny.values)
    if "layer_types" in values:
        values["layer_types"] = list(values["layer_types"])
    torch.manual_seed(seed)
    if tiny.architecture == "gemma4":
        model = Gemma4ForCausalLM(Gemma4TextConfig(**values))
    else:
        model = Gemma3ForCausalLM(Gemma3TextConfig(**values))
    model.set_attn_implementation("eager")
    if tiny.architecture == "gemma4":
        model.set_experts_implementation("eager")  # the default one has no float64
    mean = 0.0 if tiny.architecture == "gemma3" else 1.0  # Gemma 3 adds 1 to its norm weights
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("lm_head.weight"):
                continue  # the token embedding's own storage
            if "embed_tokens" in name:
                tensor.normal_(0.0, embed_gain * tensor.shape[1] ** -0.5)
            elif name.endswith("layer_scalar"):
                tensor.uniform_(0.5, 1.5)
            elif "q_norm" in name or "k_norm" in name:
                # Scores q.k of a standard deviation of about 1, as in a trained model: with a gain
                # of 1 the softmax is nearly one-hot, and rounding grows from layer to layer.
                gain = tensor.shape[0] ** -0.25 if tiny.architecture == "gemma4" else 1.0
                tensor.normal_(gain + mean - 1.0, 0.3 * gain)
            elif "norm" in name or name.endswith("scale"):
                tensor.normal_(mean, 0.3)
            else:
                tensor.normal_(0.0, tensor.shape[-1] ** -0.5)
    return model.float().eval()


def save_hf(model: Any, folder: Path, extra: Mapping[str, Float32Array] | None = None) -> Path:
    """Write a safetensors folder as `save_pretrained` does, with further tensors if given."""
    folder.mkdir(parents=True)
    arrays = _arrays(model) | dict(extra or {})
    save_file(
        {name: np.ascontiguousarray(a) for name, a in arrays.items()}, folder / "model.safetensors"
    )
    architecture = (
        "Gemma3ForCausalLM" if "gemma3" in model.config.model_type else ("Gemma4ForCausalLM")
    )
    config = json.loads(model.config.to_json_string()) | {"architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def save_gguf(
    model: Any,
    path: Path,
    *,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, Float32Array] | None = None,
    without: Collection[str] = (),
    encode: Callable[[str, Float32Array], QTensor] = float_tensor,
) -> Path:
    """Write a GGUF file as llama.cpp's converter does.

    Args:
        metadata: keys to replace, or to leave out where the value is None.
        extra: further tensors, by GGUF name.
        without: GGUF names of tensors to leave out.
        encode: gives the stored tensor of each name and array.
    """
    architecture = "gemma3" if "gemma3" in model.config.model_type else "gemma4"
    keys = {"general.architecture": architecture}
    keys |= gguf_metadata(model.config, architecture) | dict(metadata or {})
    arrays = gguf_arrays(model, architecture) | dict(extra or {})
    tensors = [encode(name, array) for name, array in arrays.items() if name not in without]
    write_gguf(path, {k: v for k, v in keys.items() if v is not None}, tensors)
    return path


def save_whole_gguf(path: Path) -> Path:
    """An E-series model with a toy Gemma 4 vocabulary, so that it takes and gives text."""
    vocabulary = gemma4_metadata()
    count = len(vocabulary["tokenizer.ggml.tokens"])
    sizes = {"vocab_size": count, "vocab_size_per_layer_input": count}
    model = make_model(Tiny("whole", "gemma4", sizes | {"max_position_embeddings": 96}))
    texts = {
        key: [piece.decode("utf-8", "surrogateescape") for piece in vocabulary[key]]
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
    }
    return save_gguf(model, path, metadata=vocabulary | texts)


def gguf_arrays(model: Any, architecture: str) -> dict[str, Float32Array]:
    """The model's tensors under their GGUF names, with the values that GGUF holds."""
    rename = _gguf_names(len(model.config.layer_types))
    arrays: dict[str, Float32Array] = {}
    for name, array in _arrays(model).items():
        row, gguf_name = rename[name.removeprefix("model.")]
        one = 1.0 if architecture == "gemma3" and row.is_gain else 0.0
        arrays[gguf_name] = array + np.float32(one)
    if architecture == "gemma4":
        arrays["rope_freqs.weight"] = _rope_freqs(model.config)
    return arrays


def _arrays(model: Any) -> dict[str, Float32Array]:
    """All tensors under transformers' names, the tied head left out as in saved files."""
    return {
        name: tensor.numpy().copy()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }


def _gguf_names(num_layers: int) -> dict[str, tuple[names.Row, str]]:
    outer = names.MODEL + names.MODEL_GEMMA4 + names.MODEL_PLE
    inner = (*names.LAYER, *names.LAYER_GEMMA4, names.EXPERTS_FUSED, *names.LAYER_PLE)
    renamed = {row.hf: (row, row.gguf) for row in outer if row.hf and row.gguf}
    for i in range(num_layers):
        for row in inner:
            if row.hf and row.gguf:
                renamed[f"layers.{i}.{row.hf}"] = (row, f"blk.{i}.{row.gguf}")
    return renamed


def _full(config: Any, key: str) -> int:
    """A full layer's value of a key that transformers lets differ per layer."""
    overrides = config.to_dict().get("per_layer_config") or {}
    for index, kind in enumerate(config.layer_types):
        if kind == _F:
            found = overrides.get(index, overrides.get(str(index), {}))
            return int(found.get(key, config.to_dict()[key]))
    raise AssertionError("no full layer")


def gguf_metadata(config: Any, architecture: str) -> dict[str, Any]:
    """Keys as llama.cpp's converter writes them."""
    ropes = config.rope_parameters
    values = config.to_dict()
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": values["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.sliding_window": config.sliding_window,
        "rope.freq_base": ropes[_F]["rope_theta"],
    }
    if config.final_logit_softcapping:
        keys["final_logit_softcapping"] = config.final_logit_softcapping
    if architecture == "gemma3":
        keys["attention.key_length"] = keys["attention.value_length"] = values["head_dim"]
        if ropes[_F]["rope_type"] == "linear":
            keys["rope.scaling.type"] = "linear"
            keys["rope.scaling.factor"] = ropes[_F]["factor"]
        return {f"gemma3.{key}": value for key, value in keys.items()}

    sliding = [kind == _S for kind in config.layer_types]
    head_dim = _full(config, "head_dim")
    keys |= {
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "attention.sliding_window_pattern": sliding,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.key_length_swa": values["head_dim"],
        "attention.value_length_swa": values["head_dim"],
        "rope.freq_base_swa": ropes[_S]["rope_theta"],
    }
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    if config.use_double_wide_mlp:
        keys["feed_forward_length"] = [
            config.intermediate_size * (1 if i < first_shared else 2)
            for i in range(config.num_hidden_layers)
        ]
    full_kv = _full(config, "num_key_value_heads")
    if full_kv != values["num_key_value_heads"]:
        keys["attention.head_count_kv"] = [
            values["num_key_value_heads"] if is_sliding else full_kv for is_sliding in sliding
        ]
    if config.enable_moe_block:
        keys |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.top_k_experts,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    return {f"gemma4.{key}": value for key, value in keys.items()}


def _rope_freqs(config: Any) -> Float32Array:
    half = _full(config, "head_dim") // 2
    share = config.rope_parameters[_F]["partial_rotary_factor"]
    num_rotated = int(half * 2 * share / 2)
    return np.array([1.0] * num_rotated + [1e30] * (half - num_rotated), dtype=np.float32)


def logits_of(model: Any, ids: NDArray[np.int32], dtype: torch.dtype) -> NDArray[np.float64]:
    """transformers' logits [n, vocab] of all positions, computed in `dtype`."""
    with torch.no_grad():
        model.to(dtype)
        # Hidden states are asked for because a short cut of transformers 5.24 fails without
        # per-layer inputs; they switch it off.
        output = model(
            torch.from_numpy(ids).long()[None], use_cache=False, output_hidden_states=True
        )
        logits = output.logits[0]
        model.to(torch.float32)
    return logits.double().numpy()
