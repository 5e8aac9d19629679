"""GGUF files: tensor types, split files, what Ollama writes, and what is no text model."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from wild.cases import Named, add, case, changed
from wild.wild_models import (
    HIDDEN,
    LAYERS,
    WildModel,
    e_series,
    ones,
)

from culet.formats.gguf_writer import float_tensor, write_gguf, write_split_gguf
from culet.quant.types import BY_ID

WEIGHT_TYPES = [t.name for t in BY_ID.values() if not t.is_integer]

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


@case("this is a Git LFS pointer")
def split_with_a_pointer(folder: Path) -> Path:
    """One shard was not fetched."""
    paths = split(folder)
    paths[1].write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    return paths[0]


@case("model-00003-of-00003.gguf: claims 3 keys, which can't fit in the 36 bytes left")
def split_with_a_cut_header(folder: Path) -> Path:
    paths = split(folder)
    paths[2].write_bytes(paths[2].read_bytes()[:60])
    return paths[0]


@case(same=True)
def folder_with_a_half_written_file(folder: Path) -> Path:
    """What a conversion that was killed leaves behind is never taken for the model."""
    path = e_series().write(folder)
    (folder / f".{path.name}.4711.part").write_bytes(path.read_bytes()[:5000])
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
def all_marks_as_user_defined(model: WildModel) -> None:
    """As early converters wrote them; only <pad>, <eos>, <bos> and <unk> are control tokens."""
    types = np.array(model.metadata["tokenizer.ggml.token_type"])
    types[4:][types[4:] == 3] = 4
    model.metadata["tokenizer.ggml.token_type"] = types


@changed(same=True)
def runs_as_control_tokens(model: WildModel) -> None:
    """The reverse: runs of newlines and spaces, which are text, marked as control tokens."""
    pieces = model.metadata["tokenizer.ggml.tokens"]
    types = np.array(model.metadata["tokenizer.ggml.token_type"])
    for index, piece in enumerate(pieces):
        if len(piece) > 1 and not piece.strip(b"\n"):
            types[index] = 3
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


@changed(same=True)
def with_a_template_that_runs_code(model: WildModel) -> None:
    """Served, since a template is run by the sandbox alone; what it reaches for is not there."""
    code = "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os }}"
    model.metadata["tokenizer.chat_template"] = code


@changed("the chat template does not compile in line 1")
def with_a_template_that_is_cut(model: WildModel) -> None:
    model.metadata["tokenizer.chat_template"] = "{% for message in messages %}{{ message"


@changed("the default sampling can't be used: top_p")
def sampling_settings_out_of_range(model: WildModel) -> None:
    model.metadata["general.sampling.top_p"] = 7.0


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
    "lora_without_a_type": ({"general.architecture": "gemma4", "adapter.type": "lora"}, "LoRA"),
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
def context_of_a_million_tokens(model: WildModel) -> None:
    model.metadata["gemma4.context_length"] = 1 << 20


@changed("context_length is 0; it must be at least 1")
def context_of_zero(model: WildModel) -> None:
    model.metadata["gemma4.context_length"] = 0


@changed("layer_norm_rms_epsilon is nan|must be finite")
def epsilon_that_is_no_number(model: WildModel) -> None:
    model.metadata["gemma4.attention.layer_norm_rms_epsilon"] = float("nan")
