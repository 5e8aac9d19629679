"""GGUF files: keys and tensors of one model in the forms that converters really write."""

from __future__ import annotations

from functools import partial

import numpy as np
from wild.cases import add, changed
from wild.wild_models import (
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    PLE,
    SHARED,
    SLIDING,
    WildModel,
    add_kv,
    head_dim,
    ones,
)

from culet.formats.gguf_writer import Scalar
from culet.quant.tensor import QTensor

OWNING = range(LAYERS - SHARED)
SHARING = range(LAYERS - SHARED, LAYERS)

# ---- shared K and V ------------------------------------------------------------------------------


@changed(same=True)
def plain(model: WildModel) -> None:
    """As Google's QAT files: no K and V on layers that share."""


@changed(same=True)
def shared_kv_present(model: WildModel) -> None:
    for index in SHARING:
        add_kv(model, index)


@changed(same=True)
def shared_kv_present_on_one_layer(model: WildModel) -> None:
    add_kv(model, LAYERS - 1)


@changed(same=True)
def shared_k_norm_only(model: WildModel) -> None:
    for index in SHARING:
        name = f"blk.{index}.attn_k_norm.weight"
        model.tensors[name] = ones(name, head_dim(index))


@changed("tensor blk.1.attn_k.weight is missing")
def owning_layer_without_k(model: WildModel) -> None:
    model.drop("blk.1.attn_k.weight")


@changed("tensor blk.0.attn_v.weight is missing")
def sliding_layer_without_v(model: WildModel) -> None:
    model.drop("blk.0.attn_v.weight")


@changed()
def full_layer_whose_v_is_k(model: WildModel) -> None:
    model.drop("blk.1.attn_v.weight")


@changed("no layer has K/V of its own: this is a draft model")
def all_layers_shared(model: WildModel) -> None:
    model.metadata["gemma4.attention.shared_kv_layers"] = LAYERS


@changed("shared_kv_layers is 9, but the model has only 4 layers")
def more_shared_layers_than_layers(model: WildModel) -> None:
    model.metadata["gemma4.attention.shared_kv_layers"] = 9


@changed("is of kind 'full' and no layer of that kind before")
def shared_without_an_owner(model: WildModel) -> None:
    model.metadata["gemma4.attention.shared_kv_layers"] = 3


# ---- fused QKV -----------------------------------------------------------------------------------


def fuse(model: WildModel, index: int) -> None:
    """attn_qkv in place of three; layers that share have K and V rows in it all the same."""
    prefix = f"blk.{index}."
    q = model.tensors.pop(f"{prefix}attn_q.weight")
    rows = [q.data]
    for part in ("attn_k", "attn_v"):
        own = model.tensors.pop(f"{prefix}{part}.weight", None)
        size = KV_HEADS * head_dim(index)
        rows.append(own.data if own else np.zeros((size, q.data.shape[1]), np.uint8))
    data = np.concatenate(rows)
    name = f"{prefix}attn_qkv.weight"
    model.tensors[name] = QTensor(name, q.qtype, (len(data), HIDDEN), data)


@changed(same=True)
def fused_qkv(model: WildModel) -> None:
    for index in range(LAYERS):
        fuse(model, index)


@changed(same=True)
def fused_qkv_on_owning_layers(model: WildModel) -> None:
    for index in OWNING:
        fuse(model, index)


@changed("tensor blk.0.attn_qkv.weight has shape .* but layers.0.attn_v is its rows")
def fused_qkv_too_short(model: WildModel) -> None:
    name = "blk.0.attn_qkv.weight"
    fuse(model, 0)
    old = model.tensors[name]
    model.tensors[name] = QTensor(name, old.qtype, (old.shape[0] - 1, HIDDEN), old.data[:-1])


# ---- scalars and lists ---------------------------------------------------------------------------


@changed(same=True)
def head_count_kv_as_list(model: WildModel) -> None:
    model.metadata["gemma4.attention.head_count_kv"] = [KV_HEADS] * LAYERS


@changed(same=True)
def head_count_kv_as_unsigned_list(model: WildModel) -> None:
    model.metadata["gemma4.attention.head_count_kv"] = np.full(LAYERS, KV_HEADS, np.uint32)


@changed(same=True)
def head_count_as_list(model: WildModel) -> None:
    model.metadata["gemma4.attention.head_count"] = [HEADS] * LAYERS


@changed(same=True)
def feed_forward_length_as_list(model: WildModel) -> None:
    model.metadata["gemma4.feed_forward_length"] = [FFN] * LAYERS


@changed(same=True)
def numbers_as_u64(model: WildModel) -> None:
    for key, value in model.metadata.items():
        if key.startswith("gemma4.") and type(value) is int:
            model.metadata[key] = Scalar("u64", value)


@changed(same=True)
def bases_as_f64(model: WildModel) -> None:
    for key in ("gemma4.rope.freq_base", "gemma4.rope.freq_base_swa"):
        model.metadata[key] = Scalar("f64", model.metadata[key])


@changed()
def wide_ffn_of_shared_layers(model: WildModel) -> None:
    """use_double_wide_mlp: shared layers have twice the width."""
    widths = [FFN * (1 if index in OWNING else 2) for index in range(LAYERS)]
    model.metadata["gemma4.feed_forward_length"] = widths
    for index in SHARING:
        for part, shape in (("gate", (2 * FFN, HIDDEN)), ("up", (2 * FFN, HIDDEN))):
            model.add(f"blk.{index}.ffn_{part}.weight", *shape)
        model.add(f"blk.{index}.ffn_down.weight", HIDDEN, 2 * FFN)


@changed(same=True)
def sliding_window_period(model: WildModel) -> None:
    model.metadata["gemma4.attention.sliding_window_pattern"] = 2


def wrong_list(key: str, count: int, model: WildModel) -> None:
    model.metadata[f"gemma4.{key}"] = [1] * count


for _key in ("attention.head_count_kv", "attention.head_count", "feed_forward_length"):
    for _count in (LAYERS - 1, LAYERS + 1):
        add(
            f"{_key}_of_{_count}",
            partial(wrong_list, _key, _count),
            rf"gemma4.{_key} is a list of {_count}; the model has 4 layers",
        )


@changed("sliding_window_pattern is a list of 3; the model has 4 layers")
def sliding_window_pattern_too_short(model: WildModel) -> None:
    model.metadata["gemma4.attention.sliding_window_pattern"] = SLIDING[:3]


@changed("head_count_kv is 'one'; it must be a whole number")
def head_count_kv_as_text(model: WildModel) -> None:
    model.metadata["gemma4.attention.head_count_kv"] = "one"


@changed("4 attention heads, which is no multiple of its 3 K/V heads")
def heads_that_do_not_divide(model: WildModel) -> None:
    model.metadata["gemma4.attention.head_count_kv"] = 3


# ---- keys that are missing -----------------------------------------------------------------------

OPTIONAL_KEYS = ("attention.value_length", "attention.value_length_swa", "rope.freq_base_swa")
REQUIRED_KEYS = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.key_length_swa",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "embedding_length_per_layer_input",
    "rope.freq_base",
)


def without_key(key: str, model: WildModel) -> None:
    del model.metadata[key]


for _key in OPTIONAL_KEYS:
    add(f"without_{_key}", partial(without_key, f"gemma4.{_key}"), same=True)
for _key in REQUIRED_KEYS:
    add(f"without_{_key}", partial(without_key, f"gemma4.{_key}"), f"key gemma4.{_key} is missing")
for _key in ("general.type", "general.name"):
    add(f"without_{_key}", partial(without_key, _key), same=True)


@changed("this is a projector|general.architecture is missing")
def without_architecture(model: WildModel) -> None:
    del model.metadata["general.architecture"]


@changed()
def without_soft_cap(model: WildModel) -> None:
    del model.metadata["gemma4.final_logit_softcapping"]


@changed("rope_freqs")
def without_rope_freqs(model: WildModel) -> None:
    model.drop("rope_freqs.weight")


@changed(same=True)
def sampling_settings(model: WildModel) -> None:
    model.metadata |= {
        "general.sampling.top_k": 64,
        "general.sampling.top_p": 0.95,
        "general.sampling.temp": 1.0,
    }


@changed(same=True)
def importance_matrix_notes(model: WildModel) -> None:
    model.metadata |= {"quantize.imatrix.file": "x.dat", "quantize.imatrix.entries_count": 9}


@changed(same=True)
def licence_and_tags(model: WildModel) -> None:
    model.metadata |= {"general.license": "gemma", "general.tags": ["a", "ü"], "general.empty": ""}


# ---- per-layer embeddings ------------------------------------------------------------------------


@changed("tensor per_layer_token_embd.weight is missing")
def promised_table_is_missing(model: WildModel) -> None:
    model.drop("per_layer_token_embd.weight")


@changed("tensor per_layer_model_proj.weight is missing")
def table_projection_is_missing(model: WildModel) -> None:
    model.drop("per_layer_model_proj.weight")


@changed("has no place in a gemma4 model")
def table_without_its_key(model: WildModel) -> None:
    model.metadata["gemma4.embedding_length_per_layer_input"] = 0


@changed()
def dense_without_table(model: WildModel) -> None:
    model.metadata["gemma4.embedding_length_per_layer_input"] = 0
    for name in list(model.tensors):
        if "per_layer" in name or name.endswith(
            ("inp_gate.weight", "proj.weight", "post_norm.weight")
        ):
            model.drop(name)


@changed("per_layer_token_embd.weight has shape")
def table_of_another_width(model: WildModel) -> None:
    model.drop("per_layer_token_embd.weight")
    model.add("per_layer_token_embd.weight", 600, PLE * LAYERS - 64)


# ---- layer factors, heads, norms -----------------------------------------------------------------


@changed(same=True)
def layer_factor_of_one(model: WildModel) -> None:
    for index in range(LAYERS):
        name = f"blk.{index}.layer_output_scale.weight"
        model.tensors[name] = ones(name, 1)


@changed(same=True)
def head_stored_twice(model: WildModel) -> None:
    table = model.tensors["token_embd.weight"]
    model.tensors["output.weight"] = QTensor("output.weight", table.qtype, table.shape, table.data)


@changed("tensor blk.2.ffn_norm.weight is missing")
def norm_is_missing(model: WildModel) -> None:
    model.drop("blk.2.ffn_norm.weight")


@changed("tensor blk.0.attn_bias.weight has no place in a gemma4 model of 4 layers")
def tensor_of_another_model(model: WildModel) -> None:
    model.add("blk.0.attn_bias.weight", 4, HIDDEN)


@changed("tensor blk.4.attn_norm.weight has no place")
def layer_past_the_end(model: WildModel) -> None:
    model.tensors["blk.4.attn_norm.weight"] = ones("blk.4.attn_norm.weight", HIDDEN)


@changed("tensor blk.1.ffn_up.weight has shape")
def matrix_of_another_shape(model: WildModel) -> None:
    model.add("blk.1.ffn_up.weight", FFN, HIDDEN * 2)
