"""GGUF files: forms of one model that converters really write, and what is not it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from wild.cases import Named, add, case, changed
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
    e_series,
    head_dim,
    ones,
)

from culet.formats.gguf_writer import Scalar, float_tensor, write_gguf, write_split_gguf
from culet.quant.tensor import QTensor
from culet.quant.types import BY_ID

WEIGHT_TYPES = [t.name for t in BY_ID.values() if not t.is_integer]
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


# ---- types ---------------------------------------------------------------------------------------


def all_matrices(type_name: str, model: WildModel) -> None:
    """Rows of 64 values (`proj`) only where whole blocks fit."""
    for name, tensor in list(model.tensors.items()):
        if len(tensor.shape) == 2:
            retype_if_it_fits(model, name, type_name)


def retype_if_it_fits(model: WildModel, name: str, type_name: str) -> None:
    block = next(t.block_values for t in BY_ID.values() if t.name == type_name)
    if model.tensors[name].row_values % block == 0:
        model.retype(name, type_name)


def one_table(name: str, type_name: str, model: WildModel) -> None:
    model.retype(name, type_name)


for _type in WEIGHT_TYPES:
    add(f"all_in_{_type}", partial(all_matrices, _type))
    add(f"token_table_in_{_type}", partial(one_table, "token_embd.weight", _type))
    add(f"layer_table_in_{_type}", partial(one_table, "per_layer_token_embd.weight", _type))


@changed()
def every_type_somewhere(model: WildModel) -> None:
    matrices = [n for n, t in model.tensors.items() if len(t.shape) == 2]
    for number, name in enumerate(matrices):
        retype_if_it_fits(model, name, WEIGHT_TYPES[number % len(WEIGHT_TYPES)])


@changed()
def smallest_dynamic_mix(model: WildModel) -> None:
    """As UD-Q2_K_XL of E2B: both tables in TQ2_0, the rest mixed."""
    for name in ("token_embd.weight", "per_layer_token_embd.weight"):
        model.retype(name, "TQ2_0")
    for index in range(LAYERS):
        for part, type_name in (("ffn_down", "IQ3_XXS"), ("ffn_up", "Q2_K"), ("attn_q", "IQ4_XS")):
            model.retype(f"blk.{index}.{part}.weight", type_name)


@changed()
def norms_in_half_precision(model: WildModel) -> None:
    for name, tensor in list(model.tensors.items()):
        if len(tensor.shape) == 1 and name != "rope_freqs.weight":
            values = tensor.data.view(np.float32).astype(np.float16).reshape(-1)
            model.tensors[name] = float_tensor(name, values)


@changed()
def nvfp4_with_its_factors(model: WildModel) -> None:
    for index in range(LAYERS):
        name = f"blk.{index}.ffn_up"
        model.retype(f"{name}.weight", "NVFP4")
        for part in ("scale", "input_scale"):
            model.tensors[f"{name}.{part}"] = ones(f"{name}.{part}", 1)


@changed("blk.0.ffn_up.scale is a factor of blk.0.ffn_up.weight, which is F32|has no place")
def factor_of_a_float_tensor(model: WildModel) -> None:
    model.tensors["blk.0.ffn_up.scale"] = ones("blk.0.ffn_up.scale", 1)


FOREIGN_TYPES = {
    4: "Q4_2, removed from ggml",
    31: "Q4_0_4_4, removed from ggml",
    9: "Q8_1, an activation format",
    133: "Q6_0, a type of ik_llama.cpp only",
    137: "IQ2_K, a type of ik_llama.cpp only",
    139: "IQ4_K, a type of ik_llama.cpp only",
    144: "IQ4_KS, a type of ik_llama.cpp only",
    152: "IQ5_KS, a type of ik_llama.cpp only",
    156: "IQ3_KS, a type of ik_llama.cpp only",
    158: "IQ1_KT, a type of ik_llama.cpp only",
    212: "Q4_K_R4, a type of ik_llama.cpp only",
    340: "IQ5_K_R4, a type of ik_llama.cpp only",
    9999: "not a ggml type",
}


def foreign(type_id: int, folder: Path) -> Path:
    """One tensor with that type id, patched into a whole file."""
    model = e_series()
    path = model.write(folder)
    raw = path.read_bytes()
    name = b"blk.2.ffn_up.weight"
    at = raw.index(name) + len(name) + 4 + 2 * 8
    path.write_bytes(raw[:at] + type_id.to_bytes(4, "little") + raw[at + 4 :])
    return path


for _id, _what in FOREIGN_TYPES.items():
    case(rf"blk.2.ffn_up.weight has type id {_id} \({_what}")(
        Named(f"type_id_{_id}", partial(foreign, _id))
    )


# ---- several files -------------------------------------------------------------------------------


def split(folder: Path, num_shards: int = 3) -> list[Path]:
    model = e_series()
    tensors = list(model.tensors.values())
    return write_split_gguf(folder, "model", model.metadata, tensors, num_shards=num_shards)


@case(same=True)
def split_first_shard(folder: Path) -> Path:
    return split(folder)[0]


@case(same=True)
def split_middle_shard(folder: Path) -> Path:
    return split(folder)[1]


@case(same=True)
def split_last_shard(folder: Path) -> Path:
    return split(folder)[2]


@case(same=True)
def split_folder(folder: Path) -> Path:
    split(folder)
    (folder / "mmproj-model.gguf").write_bytes(b"GGUF")
    return folder


@case("1 are missing: model-00002-of-00003.gguf")
def split_with_a_hole(folder: Path) -> Path:
    paths = split(folder)
    paths[1].unlink()
    return paths[0]


@case("its name must be like")
def split_and_renamed(folder: Path) -> Path:
    return split(folder)[0].rename(folder / "renamed.gguf")


@case("calls itself shard")
def split_and_swapped(folder: Path) -> Path:
    first, second, _ = split(folder)
    third = folder / "x"
    first.rename(third)
    second.rename(first)
    third.rename(second)
    return first


@case("holds several models")
def folder_of_two_models(folder: Path) -> Path:
    e_series().write(folder)
    model = e_series()
    model.file_name = "other.gguf"
    model.write(folder)
    return folder


@case(same=True)
def folder_of_one_model(folder: Path) -> Path:
    e_series().write(folder)
    (folder / "mmproj-BF16.gguf").write_bytes(b"GGUF")
    return folder


# ---- Ollama --------------------------------------------------------------------------------------


def ollama(model: WildModel) -> None:
    """A blob of Ollama's store: towers inside, the wrong tokenizer kind, rising scores."""
    count = len(model.metadata["tokenizer.ggml.tokens"])
    model.file_name = "sha256-0123456789abcdef"
    model.metadata |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "gemma4",
        "tokenizer.ggml.scores": np.arange(count, dtype=np.float32),
        "gemma4.vision.block_count": 1,
        "gemma4.audio.block_count": 1,
    }
    model.metadata.pop("general.type")
    for name in ("v.patch_embd.weight", "v.blk.0.attn_q.weight", "a.blk.0.ffn_up.weight"):
        model.add(name, 4, HIDDEN)
    model.add("mm.input_projection.weight", 4, HIDDEN)
    model.tensors["v.clamp_data"] = ones("v.clamp_data", 32)


add("ollama_blob", ollama, same=True, logged="the pieces are Gemma 4's: pairs merge by rank")


@changed(same=True, logged=r"not used: vision tower \(1 tensor\), projector \(1 tensor\)")
def towers_inside(model: WildModel) -> None:
    model.add("v.patch_embd.weight", 4, HIDDEN)
    model.add("mm.input_projection.weight", 4, HIDDEN)


@changed("tokenizer.ggml.merges is missing, and a Gemma 4 vocabulary cannot be used without")
def ollama_blob_without_merges(model: WildModel) -> None:
    ollama(model)
    del model.metadata["tokenizer.ggml.merges"]


# ---- vocabularies --------------------------------------------------------------------------------


@changed(same=True)
def without_pre_key(model: WildModel) -> None:
    model.metadata.pop("tokenizer.ggml.pre", None)


@changed(same=True, logged="token types put right by spelling")
def eos_as_normal_type(model: WildModel) -> None:
    types = np.array(model.metadata["tokenizer.ggml.token_type"])
    types[1] = 1
    model.metadata["tokenizer.ggml.token_type"] = types


@changed(same=True)
def tool_marks_as_user_defined(model: WildModel) -> None:
    types = np.array(model.metadata["tokenizer.ggml.token_type"])
    types[5:14] = 4
    model.metadata["tokenizer.ggml.token_type"] = types


@changed(same=True)
def without_token_types(model: WildModel) -> None:
    del model.metadata["tokenizer.ggml.token_type"]


@changed(same=True)
def without_scores(model: WildModel) -> None:
    model.metadata.pop("tokenizer.ggml.scores", None)


@changed(same=True)
def bos_not_wanted(model: WildModel) -> None:
    model.metadata["tokenizer.ggml.add_bos_token"] = False


@changed(same=True)
def eos_is_the_turn_mark(model: WildModel) -> None:
    tokens = model.metadata["tokenizer.ggml.tokens"]
    model.metadata["tokenizer.ggml.eos_token_id"] = tokens.index(b"<turn|>")


@changed("tokenizer.ggml.token_type holds 3 values")
def too_few_token_types(model: WildModel) -> None:
    model.metadata["tokenizer.ggml.token_type"] = np.ones(3, np.int32)


@changed("eos_token_id is 1000000, not an id from 0")
def eos_past_the_end(model: WildModel) -> None:
    model.metadata["tokenizer.ggml.eos_token_id"] = 1_000_000


@changed("tokenizer.ggml.model is missing|tokenizer.ggml.tokens is missing")
def without_a_vocabulary(model: WildModel) -> None:
    for key in [k for k in model.metadata if k.startswith("tokenizer.")]:
        del model.metadata[key]


@changed(same=True, logged="has no chat template|built-in")
def without_a_template(model: WildModel) -> None:
    model.metadata.pop("tokenizer.chat_template", None)


@changed(same=True)
def with_a_template(model: WildModel) -> None:
    model.metadata["tokenizer.chat_template"] = "{{ bos_token }}{{ messages[0]['content'] }}"


# ---- what is no text model -----------------------------------------------------------------------

NOT_TEXT_MODELS = {
    "mmproj": (
        {"general.architecture": "clip", "general.type": "mmproj"},
        "vision or audio projector",
    ),
    "mmproj_of_unknown_kind": (
        {"general.architecture": "clip", "clip.projector_type": "invented"},
        "vision or audio projector",
    ),
    "assistant": ({"general.architecture": "gemma4-assistant"}, "a draft model"),
    "ik_assistant": ({"general.architecture": "gemma4_mtp"}, "a draft model"),
    "dflash": ({"general.architecture": "dflash"}, "a draft model"),
    "lora": (
        {"general.architecture": "gemma4", "general.type": "adapter", "adapter.type": "lora"},
        "a LoRA adapter",
    ),
    "imatrix": ({"general.architecture": "imatrix", "general.type": "imatrix"}, "importance"),
    "embedding_gemma": ({"general.architecture": "gemma-embedding"}, "an embedding model"),
    "bert": ({"general.architecture": "nomic-bert"}, "an embedding model"),
    "gemma3n": ({"general.architecture": "gemma3n"}, "'gemma3n', only Gemma 4 and Gemma 3"),
    "gemma2": ({"general.architecture": "gemma2"}, "'gemma2', only Gemma 4 and Gemma 3"),
    "llama": ({"general.architecture": "llama"}, "'llama', only Gemma 4 and Gemma 3"),
    "qwen3": ({"general.architecture": "qwen3"}, "'qwen3', only Gemma 4 and Gemma 3"),
    "of_another_type": (
        {"general.architecture": "gemma4", "general.type": "vae"},
        "general.type is 'vae'",
    ),
}


def other_file(metadata: dict[str, str], folder: Path) -> Path:
    path = folder / "model.gguf"
    write_gguf(path, metadata, [ones("some.weight", 32)])
    return path


for _name, (_metadata, _reason) in NOT_TEXT_MODELS.items():
    case(_reason)(Named(f"not_a_text_model_{_name}", partial(other_file, _metadata)))


# ---- stubs, names, versions ----------------------------------------------------------------------


def stub(share_of_data: float, folder: Path) -> Path:
    """The file cut within its weights."""
    model = e_series()
    path = model.write(folder)
    raw = path.read_bytes()
    data = sum(t.num_bytes for t in model.tensors.values())
    path.write_bytes(raw[: len(raw) - int(data * (1 - share_of_data))])
    return path


for _share in (0.0, 0.5, 0.99):
    case()(Named(f"stub_with_{_share}_of_its_data", partial(stub, _share)))


@changed(same=True)
def name_without_suffix(model: WildModel) -> None:
    model.file_name = "model"


@changed(same=True)
def name_with_spaces_and_umlauts(model: WildModel) -> None:
    model.file_name = "mein Modell (ü).gguf"


def aligned(alignment: int, model: WildModel) -> None:
    model.alignment = alignment


for _alignment in (8, 64, 4096, 65536):
    add(f"alignment_{_alignment}", partial(aligned, _alignment), same=True)


@case(same=True)
def version_2(folder: Path) -> Path:
    path = e_series().write(folder)
    raw = path.read_bytes()
    path.write_bytes(raw[:4] + b"\2\0\0\0" + raw[8:])
    return path


@case(same=True)
def tensors_in_reverse(folder: Path) -> Path:
    model = e_series()
    model.tensors = dict(reversed(model.tensors.items()))
    return model.write(folder)


@changed(same=True)
def context_of_one_token(model: WildModel) -> None:
    model.metadata["gemma4.context_length"] = 1 << 20


@changed("context_length is 0; it must be at least 1")
def context_of_zero(model: WildModel) -> None:
    model.metadata["gemma4.context_length"] = 0


@changed("layer_norm_rms_epsilon is nan|must be finite")
def epsilon_that_is_no_number(model: WildModel) -> None:
    model.metadata["gemma4.attention.layer_norm_rms_epsilon"] = float("nan")
