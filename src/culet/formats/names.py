"""The one table of tensor names: what the runtime calls a tensor, and what files call it.

Data only; `binding` applies it. Knows of models only what decides which tensors they have.
Sources of the names: llama.cpp's gguf-py (constants.py, tensor_mapping.py) and converter for GGUF,
transformers' modeling_gemma4.py and modeling_gemma3.py for HF.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["gguf", "safetensors"]
Presence = Literal["required", "optional"]


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What decides which tensors one layer has.

    Attributes:
        q_rows, kv_rows: rows of the Q and of the K projection (heads x head_dim); they split a
            fused `attn_qkv`.
    """

    owns_kv: bool
    value_is_key: bool
    has_experts: bool
    q_rows: int
    kv_rows: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What decides which tensors a model has outside its layers.

    Attributes:
        has_ple: there is a per-layer embedding table, and a gate and projection in each layer.
        tied_head: the token embedding is the LM head; a head in the file is dropped.
            GGUF has no such key: there a head that is in the file counts.
    """

    architecture: Literal["gemma4", "gemma3"]
    layers: Sequence[LayerFacts]
    has_ple: bool
    tied_head: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of a model or of each of its layers.

    Attributes:
        canonical, gguf, hf: names; in rows of layers, what follows `layers.N.`, `blk.N.` and
            `PREFIX.layers.N.`. None: that format never has it.
        when: whether a layer has it; not asked for tensors outside layers.
        otherwise: what a file may hold where `when` is false: nothing, or a tensor to be dropped.
        is_gain: weight of an RMS norm. Gemma 3 multiplies by 1 + w: HF stores w, GGUF stores 1 + w,
            and the runtime multiplies by what it is given, so HF's gets one added. Gemma 4
            multiplies by w in both.
        is_linear: quantised by rows, so NVFP4's `.scale` and `.input_scale` may lie beside it.
    """

    canonical: str
    gguf: str | None
    hf: str | None
    presence: Presence = "required"
    when: Callable[[LayerFacts], bool] = lambda layer: True
    otherwise: Literal["refuse", "drop"] = "refuse"
    is_gain: bool = False
    is_linear: bool = False


def _owns_kv(layer: LayerFacts) -> bool:
    return layer.owns_kv


def _has_value(layer: LayerFacts) -> bool:
    return layer.owns_kv and not layer.value_is_key


def _has_experts(layer: LayerFacts) -> bool:
    return layer.has_experts


def _gain(canonical: str, gguf: str, hf: str) -> Row:
    return Row(canonical, f"{gguf}.weight", f"{hf}.weight", is_gain=True)


def _linear(canonical: str, gguf: str, hf: str) -> Row:
    return Row(canonical, f"{gguf}.weight", f"{hf}.weight", is_linear=True)


MODEL: tuple[Row, ...] = (
    _linear("token_embd", "token_embd", "embed_tokens"),
    _gain("output_norm", "output_norm", "norm"),
)
# The head lies outside the text model's prefix in HF files; see HF_HEADS.
HEAD = Row("output", "output.weight", "lm_head.weight", "optional", is_linear=True)
MODEL_GEMMA4: tuple[Row, ...] = (
    # GGUF's factors 1 and 1e30 of the full layers' frequencies; HF says the same in config.json.
    Row("rope_freqs", "rope_freqs.weight", None, "optional"),
)
MODEL_PLE: tuple[Row, ...] = (
    _linear("per_layer_token_embd", "per_layer_token_embd", "embed_tokens_per_layer"),
    _linear("per_layer_model_proj", "per_layer_model_proj", "per_layer_model_projection"),
    _gain("per_layer_proj_norm", "per_layer_proj_norm", "per_layer_projection_norm"),
)
LAYER: tuple[Row, ...] = (
    _gain("attn_norm", "attn_norm", "input_layernorm"),
    _linear("attn_q", "attn_q", "self_attn.q_proj"),
    replace(_linear("attn_k", "attn_k", "self_attn.k_proj"), when=_owns_kv, otherwise="drop"),
    replace(_linear("attn_v", "attn_v", "self_attn.v_proj"), when=_has_value, otherwise="drop"),
    _linear("attn_output", "attn_output", "self_attn.o_proj"),
    _gain("attn_q_norm", "attn_q_norm", "self_attn.q_norm"),
    replace(
        _gain("attn_k_norm", "attn_k_norm", "self_attn.k_norm"), when=_owns_kv, otherwise="drop"
    ),
    _gain("post_attention_norm", "post_attention_norm", "post_attention_layernorm"),
    _gain("ffn_norm", "ffn_norm", "pre_feedforward_layernorm"),
    _linear("ffn_gate", "ffn_gate", "mlp.gate_proj"),
    _linear("ffn_up", "ffn_up", "mlp.up_proj"),
    _linear("ffn_down", "ffn_down", "mlp.down_proj"),
    _gain("post_ffw_norm", "post_ffw_norm", "post_feedforward_layernorm"),
)
LAYER_GEMMA4: tuple[Row, ...] = (
    Row("layer_scale", "layer_output_scale.weight", "layer_scalar", "optional"),
    Row("router", "ffn_gate_inp.weight", "router.proj.weight", when=_has_experts),
    Row("router_scale", "ffn_gate_inp.scale", "router.scale", when=_has_experts),
    # In NVFP4 files this also holds the factors of the experts' down weights: both multiply an
    # expert's output, so it is one factor either way.
    Row(
        "expert_scale",
        "ffn_down_exps.scale",
        "router.per_expert_scale",
        "optional",
        when=_has_experts,
    ),
    Row("experts_down", "ffn_down_exps.weight", "experts.down_proj", when=_has_experts),
    replace(
        _gain("experts_norm", "pre_ffw_norm_2", "pre_feedforward_layernorm_2"), when=_has_experts
    ),
    replace(
        _gain("mlp_post_norm", "post_ffw_norm_1", "post_feedforward_layernorm_1"), when=_has_experts
    ),
    replace(
        _gain("experts_post_norm", "post_ffw_norm_2", "post_feedforward_layernorm_2"),
        when=_has_experts,
    ),
)
# Gate and up of all experts: one tensor (gate rows first), or two in some GGUF files.
EXPERTS_FUSED = Row(
    "experts_gate_up",
    "ffn_gate_up_exps.weight",
    "experts.gate_up_proj",
    when=_has_experts,
    is_linear=True,
)
EXPERTS_SPLIT: tuple[Row, ...] = (
    Row("experts_gate", "ffn_gate_exps.weight", None, when=_has_experts, is_linear=True),
    Row("experts_up", "ffn_up_exps.weight", None, when=_has_experts, is_linear=True),
)
LAYER_PLE: tuple[Row, ...] = (
    _linear("ple_gate", "inp_gate", "per_layer_input_gate"),
    _linear("ple_proj", "proj", "per_layer_projection"),
    _gain("ple_norm", "post_norm", "post_per_layer_input_norm"),
)
FUSED_QKV = "attn_qkv.weight"

# Where the text model begins in HF files, by who saved them: multimodal classes of transformers
# from version 5, Gemma 3's older ones, text-only classes, bare text models.
HF_PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "model.",
    "language_model.",
    "",
)
HF_HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")

# Parts of a checkpoint that a text model leaves alone, by the beginning of their names.
GROUPS: dict[Kind, tuple[tuple[str, str], ...]] = {
    "gguf": (
        ("v.", "vision tower"),
        ("a.", "audio tower"),
        ("mm.", "projector"),
    ),
    "safetensors": (
        ("vision_tower.", "vision tower"),
        ("vision_embedder.", "vision tower"),
        ("embed_vision.", "vision tower"),
        ("audio_tower.", "audio tower"),
        ("embed_audio.", "audio tower"),
        ("multi_modal_projector.", "projector"),
    ),
}


def gguf_name(canonical: str) -> str:
    """What GGUF calls a tensor of the runtime."""
    if canonical.startswith("layers."):
        _, index, part = canonical.split(".", 2)
        return f"blk.{index}.{_GGUF_NAMES[part]}"
    return _GGUF_NAMES[canonical]


_GGUF_NAMES: dict[str, str] = {
    row.canonical: row.gguf
    for row in (
        *MODEL,
        HEAD,
        *MODEL_GEMMA4,
        *MODEL_PLE,
        *LAYER,
        *LAYER_GEMMA4,
        EXPERTS_FUSED,
        *EXPERTS_SPLIT,
        *LAYER_PLE,
    )
    if row.gguf is not None
}
