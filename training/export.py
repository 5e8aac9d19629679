"""The trained model as files: a Hugging Face folder in bf16, and GGUF in Q8_0 and Q4_K.

Names and transforms come from culet's own table, so the files say what its loader expects.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import Gemma4ForCausalLM, Gemma4TextConfig, GenerationConfig

from culet.formats import names
from culet.formats.gguf_writer import Scalar, float_tensor, write_gguf
from culet.quant.encode import encode
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME
from training.tokenizer import Vocabulary, build

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
MODEL_NAME = "Culet built-in"
# llama.cpp's numbers for "mostly this type" (general.file_type).
_FILE_TYPES = {"Q8_0": 7, "Q4_K": 15}
_SAMPLING = {"temperature": 1.0, "top_k": 64, "top_p": 0.95}


def write_folder(model: Gemma4ForCausalLM, vocabulary: Vocabulary, folder: Path) -> None:
    """config.json, generation_config.json, model.safetensors in bf16, tokenizer and template."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    stored: Any = copy.deepcopy(model)
    stored.to(torch.bfloat16)
    make_config: Any = GenerationConfig
    stored.generation_config = make_config(
        do_sample=True,
        bos_token_id=ids["<bos>"],
        eos_token_id=model.config.eos_token_id,
        pad_token_id=ids["<pad>"],
        **_SAMPLING,
    )
    stored.save_pretrained(folder)
    build(vocabulary).save(str(folder / "tokenizer.json"))
    tokens = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad", "unk", "mask")}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True, **tokens}
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE.read_text("utf-8"), encoding="utf-8")


def load_folder(folder: Path) -> tuple[Gemma4ForCausalLM, Tokenizer]:
    """The shipped model in fp32, which is what all its other forms are compared with."""
    model = Gemma4ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, Tokenizer.from_file(str(folder / "tokenizer.json"))


def write_quantised(
    model: Gemma4ForCausalLM, vocabulary: Vocabulary, path: Path, type_name: str
) -> None:
    """A GGUF file whose matrices are Q8_0, or Q4_K where rows are whole superblocks, else Q8_0."""
    tensors = [_tensor(name, value, type_name) for name, value in _named(model)]
    half = _head_dim(model.config, "full_attention") // 2
    factors = np.full(half, 1e30, np.float32)
    factors[: half // 4] = 1.0  # the quarter that rotates; 1e30 stills the rest
    tensors.append(float_tensor("rope_freqs.weight", factors))
    metadata = {
        **_metadata(model.config),
        "general.file_type": Scalar("u32", _FILE_TYPES[type_name]),
        **_tokenizer_metadata(vocabulary),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(path, metadata, tensors)


def _named(model: Gemma4ForCausalLM) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Each tensor under its GGUF name; one that the table doesn't know is an error."""
    rows = (*names.MODEL, *names.MODEL_PLE)
    global_names = {row.hf: row.gguf for row in rows}
    layer_names = {
        row.hf: row.gguf for row in (*names.LAYER, *names.LAYER_GEMMA4, *names.LAYER_PLE)
    }
    for hf_name, value in model.model.state_dict().items():
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", hf_name)
        if layer:
            name = f"blk.{layer[1]}.{layer_names[layer[2]]}"
        else:
            name = str(global_names[hf_name])
        yield name, value.numpy()


def _tensor(name: str, values: NDArray[np.float32], type_name: str) -> QTensor:
    if values.ndim == 1:
        return float_tensor(name, values)
    whole_blocks = values.shape[1] % BY_NAME[type_name].block_values == 0
    qtype = BY_NAME[type_name if whole_blocks else "Q8_0"]
    return QTensor(name, qtype, values.shape, encode(values, qtype))


def _head_dim(config: Any, kind: str) -> int:
    """The head size of layers of one kind; transformers keeps it per layer."""
    size: int = config.per_layer_config[kind].head_dim
    return size


def _metadata(config: Gemma4TextConfig) -> dict[str, Any]:
    first_shared = config.num_hidden_layers - config.num_kv_shared_layers
    widths = [config.intermediate_size] * first_shared
    widths += [2 * config.intermediate_size] * config.num_kv_shared_layers
    head_dim = _head_dim(config, "sliding_attention")
    full_head_dim = _head_dim(config, "full_attention")
    kinds, ropes = config.layer_types, config.rope_parameters
    assert kinds is not None and ropes is not None  # __post_init__ fills them in
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": widths,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": full_head_dim,
        "attention.value_length": full_head_dim,
        "attention.key_length_swa": head_dim,
        "attention.value_length_swa": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "rope.freq_base": float(ropes["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
        "rope.dimension_count": full_head_dim,
        "rope.dimension_count_swa": head_dim,
        "final_logit_softcapping": config.final_logit_softcapping,
    }
    return {
        "general.architecture": "gemma4",
        "general.type": "model",
        "general.name": MODEL_NAME,
        "general.license": "apache-2.0",
        "general.quantization_version": 2,
        "general.sampling.temp": _SAMPLING["temperature"],
        "general.sampling.top_k": _SAMPLING["top_k"],
        "general.sampling.top_p": _SAMPLING["top_p"],
        **{f"gemma4.{key}": value for key, value in own.items()},
    }


def _tokenizer_metadata(vocabulary: Vocabulary) -> dict[str, Any]:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    count = len(vocabulary.tokens)
    own = {
        "model": "gemma4",
        "tokens": list(vocabulary.tokens),
        "scores": np.full(count, -1000.0, np.float32),
        "token_type": np.array([vocabulary.ggml_type(i) for i in range(count)], np.int32),
        "merges": [f"{left} {right}" for left, right in vocabulary.merges],
        "bos_token_id": ids["<bos>"],
        "eos_token_id": ids["<eos>"],
        "unknown_token_id": ids["<unk>"],
        "padding_token_id": ids["<pad>"],
        "mask_token_id": ids["<mask>"],
        "add_bos_token": True,
        "add_space_prefix": False,
    }
    template = {"tokenizer.chat_template": TEMPLATE.read_text(encoding="utf-8")}
    return {f"tokenizer.ggml.{key}": value for key, value in own.items()} | template
