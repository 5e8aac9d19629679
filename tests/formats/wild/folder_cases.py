"""HF folders: the layouts that tools write, other schemes, and folders with holes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from wild.cases import Named, case
from wild.wild_models import FFN, HIDDEN, LAYERS, WildFolder, hf_folder, safetensors_bytes

INDEX = "model.safetensors.index.json"


def add_folder(name: str, change: Any, refused: str | None = None, **options: Any) -> None:
    def make(folder: Path) -> Path:
        made = hf_folder(**options)
        change(made)
        return made.write(folder)

    case(refused)(Named(f"hf_{name}", make))


def nothing(folder: WildFolder) -> None:
    pass


def sharded(index: bool, folder: WildFolder) -> None:
    folder.num_shards, folder.index = 3, index


def stored_as(dtype: str, folder: WildFolder) -> None:
    folder.dtype = dtype


add_folder("single_file", nothing)
add_folder("shards_and_index", partial(sharded, True))
add_folder("shards_without_index", partial(sharded, False))
for _dtype in ("BF16", "F16", "F32"):
    add_folder(f"in_{_dtype}", partial(stored_as, _dtype))
for _prefix in ("model.language_model.", "language_model.model.", "model.", "language_model.", ""):
    add_folder(f"prefix_{_prefix or 'none'}", nothing, prefix=_prefix)
add_folder("text_only", nothing, prefix="model.", model_type="gemma4_text")


def with_towers(folder: WildFolder) -> None:
    for name in ("vision_tower.a.weight", "audio_tower.b.weight", "embed_vision.c.weight"):
        folder.tensors[f"model.{name}"] = np.ones((2, 4), np.float32)


def unified(folder: WildFolder) -> None:
    for name in ("vision_embedder.patch.weight", "embed_audio.proj.weight"):
        folder.tensors[f"model.{name}"] = np.ones((2, 4), np.float32)


add_folder("with_towers", with_towers)
add_folder("unified_12b", unified, model_type="gemma4_unified")


def shared_kv(folder: WildFolder) -> None:
    for index in (2, 3):
        width = 64 if index == 2 else 128
        attention = f"model.language_model.layers.{index}.self_attn."
        for part in ("k_proj", "v_proj"):
            folder.tensors[f"{attention}{part}.weight"] = np.ones((width, HIDDEN), np.float32)
        folder.tensors[f"{attention}k_norm.weight"] = np.ones(width, np.float32)


add_folder("shared_kv_present", shared_kv)


def tied_head_stored(folder: WildFolder) -> None:
    table = folder.tensors["model.language_model.embed_tokens.weight"]
    folder.tensors["lm_head.weight"] = table


add_folder("tied_head_stored_too", tied_head_stored)


def template_file(folder: WildFolder) -> None:
    folder.files["chat_template.jinja"] = b"{{ messages[0]['content'] }}"


add_folder("template_in_its_own_file", template_file)


def config_with_template(template: Any, folder: WildFolder) -> None:
    folder.files["tokenizer_config.json"] = json.dumps({"chat_template": template}).encode()


def both_templates(folder: WildFolder) -> None:
    template_file(folder)
    config_with_template("{% not even this", folder)  # never looked at


_NAMED = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "{{ messages }}"}]
add_folder("template_in_the_config", partial(config_with_template, "{{ messages }}"))
add_folder("template_in_both_files", both_templates)
add_folder("templates_by_name", partial(config_with_template, _NAMED))
add_folder(
    "templates_by_name_without_a_default",
    partial(config_with_template, _NAMED[:1]),
    "chat_template names .'tool_use'., but no 'default'",
)
add_folder("template_that_is_cut", partial(config_with_template, "{% if"), "does not compile")


def generation_config(content: Any, folder: WildFolder) -> None:
    folder.files["generation_config.json"] = json.dumps(content).encode()


add_folder("generation_settings", partial(generation_config, {"top_k": 64, "temperature": 1.0}))
add_folder("generation_settings_empty", partial(generation_config, {}))
add_folder("generation_settings_as_a_list", partial(generation_config, []), "must be an object")
add_folder(
    "generation_settings_out_of_range",
    partial(generation_config, {"top_p": 7}),
    "the default sampling can't be used: top_p",
)


def rope_of(kind: str, folder: WildFolder) -> None:
    folder.config["text_config"]["rope_parameters"]["full_attention"]["rope_type"] = kind


add_folder("rope_that_is_not_served", partial(rope_of, "yarn"), "rope_type is 'yarn'; served are")


def without_tokenizer(folder: WildFolder) -> None:
    del folder.files["tokenizer.json"]


add_folder("without_tokenizer", without_tokenizer, "there is no tokenizer.json beside the weights")


def missing_tensor(folder: WildFolder) -> None:
    del folder.tensors["model.language_model.layers.0.mlp.up_proj.weight"]


add_folder("missing_tensor", missing_tensor, "layers.0.mlp.up_proj.weight is missing")


def left_over(folder: WildFolder) -> None:
    folder.tensors["model.language_model.layers.0.mlp.extra.weight"] = np.ones((2, 2), np.float32)


add_folder("left_over_tensor", left_over, "mlp.extra.weight has no place")


def layer_past_the_end(folder: WildFolder) -> None:
    name = f"model.language_model.layers.{LAYERS}.input_layernorm.weight"
    folder.tensors[name] = np.ones(HIDDEN, np.float32)


add_folder("layer_past_the_end", layer_past_the_end, "layers.4.input_layernorm.weight has no place")

# ---- other schemes -------------------------------------------------------------------------------

SCHEMES = {
    "fp8": {"quant_method": "fp8"},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "compressed_tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    "awq": {"quant_method": "awq", "bits": 4},
    "gptq": {"quant_method": "gptq", "bits": 4},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "torchao": {"quant_method": "torchao"},
    "unnamed": {"bits": 4},
}


def scheme(name: str, folder: WildFolder) -> None:
    folder.config["quantization_config"] = SCHEMES[name]


for _name in SCHEMES:
    add_folder(f"scheme_{_name}", partial(scheme, _name), "the weights are quantised by the scheme")


def mlx(folder: WildFolder) -> None:
    name = "model.language_model.layers.0.mlp.up_proj"
    folder.tensors[f"{name}.weight"] = np.ones((FFN, HIDDEN // 8), np.uint32)
    for part in ("scales", "biases"):
        folder.tensors[f"{name}.{part}"] = np.ones((FFN, 4), np.float32)


add_folder("mlx", mlx, "the folder is MLX-quantised")


def int8_state(folder: WildFolder) -> None:
    name = "model.language_model.layers.0.mlp.up_proj"
    folder.tensors[f"{name}.weight"] = np.ones((FFN, HIDDEN), np.int8)
    folder.tensors[f"{name}.SCB"] = np.ones(FFN, np.float32)


add_folder("int8_leftovers", int8_state, "int8 weights without a known scheme")


def packed_bytes(folder: WildFolder) -> None:
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    folder.tensors[name] = np.ones((FFN, HIDDEN // 2), np.uint8)


add_folder("packed_bytes", packed_bytes, "U8 weights without a known scheme")

# ---- other models --------------------------------------------------------------------------------

OTHERS = {
    "gemma3n": ({"model_type": "gemma3n"}, "'gemma3n', only Gemma 4 and Gemma 3"),
    "qwen3": ({"model_type": "qwen3"}, "'qwen3', only Gemma 4 and Gemma 3"),
    "assistant": ({"model_type": "gemma4_assistant"}, "a draft model"),
    "siglip": ({"model_type": "siglip_vision_model"}, "a vision tower"),
    "no_type": ({}, "model_type is missing"),
    "type_of_another_kind": ({"model_type": 4}, "model_type is 4, must be a string"),
}


def other_config(config: dict[str, Any], folder: WildFolder) -> None:
    folder.config = config


for _name, (_config, _reason) in OTHERS.items():
    add_folder(f"other_{_name}", partial(other_config, _config), _reason)


def embedding_gemma(folder: WildFolder) -> None:
    folder.config = {"model_type": "gemma3_text", "use_bidirectional_attention": True}


add_folder("embedding_gemma", embedding_gemma, "an embedding model")

# ---- holes and damage ----------------------------------------------------------------------------


def damaged(name: str, refused: str | None) -> Any:
    """Register a function that damages a written folder of three shards."""

    def register(damage: Any) -> Any:
        def make(folder: Path) -> Path:
            made = hf_folder()
            made.num_shards = 3
            path = made.write(folder)
            damage(path)
            return path

        case(refused)(Named(f"hf_{name}", make))
        return damage

    return register


def shard(path: Path, number: int) -> Path:
    return path / f"model-{number:05}-of-00003.safetensors"


@damaged("shard_missing", "1 are missing: model-00002-of-00003.safetensors")
def shard_missing(path: Path) -> None:
    shard(path, 2).unlink()


@damaged("shard_renamed", "1 are missing: model-00002-of-00003.safetensors")
def shard_renamed(path: Path) -> None:
    shard(path, 2).rename(path / "other.safetensors")


@damaged("index_to_the_wrong_shard", "these tensors aren't in the files that it names")
def index_wrong(path: Path) -> None:
    content = json.loads((path / INDEX).read_text())
    first = next(iter(content["weight_map"]))
    content["weight_map"][first] = shard(path, 3).name
    (path / INDEX).write_text(json.dumps(content))


@damaged("index_that_leaves_the_folder", "must be a .safetensors file of the same folder")
def index_outside(path: Path) -> None:
    content = json.loads((path / INDEX).read_text())
    first = next(iter(content["weight_map"]))
    content["weight_map"][first] = "../../secret.safetensors"
    (path / INDEX).write_text(json.dumps(content))


@damaged("index_is_empty", "weight_map is missing or empty")
def index_empty(path: Path) -> None:
    (path / INDEX).write_text("{}")


@damaged("config_is_missing", "there is no config.json beside the weights")
def config_missing(path: Path) -> None:
    (path / "config.json").unlink()


@damaged("config_is_no_json", "is not JSON")
def config_no_json(path: Path) -> None:
    (path / "config.json").write_text("{")


@damaged("shard_cut", None)
def shard_cut(path: Path) -> None:
    """For `check`, headers are enough."""
    raw = shard(path, 2).read_bytes()
    shard(path, 2).write_bytes(raw[:-100])


@damaged("shard_cut_within_the_header", "claims a header of")
def shard_header_cut(path: Path) -> None:
    shard(path, 2).write_bytes(shard(path, 2).read_bytes()[:100])


@damaged("shard_is_a_pointer", "this is a Git LFS pointer")
def shard_pointer(path: Path) -> None:
    shard(path, 1).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


@damaged("shard_is_random", "claims a header of")
def shard_random(path: Path) -> None:
    shard(path, 1).write_bytes(np.random.default_rng(0).bytes(4096))


@damaged("tensor_in_two_shards", "is in model-00001-of-00003.safetensors too")
def tensor_twice(path: Path) -> None:
    name = "model.language_model.norm.weight"
    for number in (1, 2):
        shard(path, number).write_bytes(safetensors_bytes({name: np.ones(4, np.float32)}))
    (path / INDEX).unlink()


@case("a LoRA adapter")
def hf_lora_folder(folder: Path) -> Path:
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(
        safetensors_bytes({"a": np.ones(4, np.float32)})
    )
    return folder


@case("holds no model")
def folder_of_pickles(folder: Path) -> Path:
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    return folder


@case("the folder is empty")
def empty_folder(folder: Path) -> Path:
    return folder


FOREIGN_FILES = {
    "pickle.bin": (b"\x80\x02}q\x00.", "a Python pickle"),
    "archive.pt": (b"PK\x03\x04rest", "a zip archive"),
    "old.bin": (b"tjggrest", "a GGML file from before GGUF"),
    "page.gguf": (b"<!DOCTYPE html>", "an HTML page"),
    "page": (b"<html>", "an HTML page"),
    "noise": (b"\x01\x02\x03\x04\x05", "neither a GGUF nor a .safetensors"),
    "nothing.gguf": (b"", "the file is empty"),
    "pointer.gguf": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "Git LFS pointer",
    ),
    "pointer.safetensors": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "Git LFS pointer",
    ),
    "lonely.safetensors": (
        safetensors_bytes({"a": np.ones(4, np.float32)}),
        "there is no config.json",
    ),
    "empty.culet": (b"", "the file is empty"),
    "short.culet": (b"\x8bCULET", "cut within its first 64 bytes"),
    "noise.culet": (bytes(100), "begins with"),
}


def foreign_file(name: str, folder: Path) -> Path:
    (folder / name).write_bytes(FOREIGN_FILES[name][0])
    return folder / name


for _name, (_, _reason) in FOREIGN_FILES.items():
    case(_reason)(Named(f"file_{_name}", partial(foreign_file, _name)))
