"""A small E-series model as metadata and arrays, and its spellings as GGUF file or HF folder.

Rows are multiples of 256 values, so that every quantised type fits every matrix.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from culet.formats.gguf_writer import float_tensor, write_gguf
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME
from support.stored_tensors import F16_OFFSETS
from support.toy_vocabularies import (
    GEMMA4_CONTROL,
    gemma4_metadata,
    gemma4_oracle,
    gemma4_tables,
)

HIDDEN, HEAD_DIM, FULL_HEAD_DIM, FFN, PLE = 256, 64, 128, 256, 64
LAYERS, SHARED = 4, 2
SLIDING = [True, False, True, False]
HEADS, KV_HEADS = 4, 1


@cache
def vocabulary() -> Mapping[str, Any]:
    """The toy vocabulary of Gemma 4's kind, as a writer takes it."""
    metadata = dict(gemma4_metadata())
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        metadata[key] = list(metadata[key])
    return metadata


@cache
def tokenizer_json() -> bytes:
    """The same vocabulary as HF folders hold it."""
    return gemma4_oracle(*gemma4_tables(), GEMMA4_CONTROL).to_str().encode()


def vocab_size() -> int:
    return len(vocabulary()["tokenizer.ggml.tokens"])


@dataclass
class WildModel:
    """What a GGUF file is made of; cases change it before it is written."""

    metadata: dict[str, Any]
    tensors: dict[str, QTensor]
    alignment: int = 32
    file_name: str = "model.gguf"

    def write(self, folder: Path) -> Path:
        path = folder / self.file_name
        write_gguf(path, self.metadata, list(self.tensors.values()), alignment=self.alignment)
        return path

    def add(self, name: str, *shape: int) -> None:
        """A float tensor of random values."""
        rng = np.random.default_rng(len(self.tensors))
        values = rng.normal(0, 0.05, shape).astype(np.float32)
        self.tensors[name] = float_tensor(name, values)

    def drop(self, *names: str) -> None:
        for name in names:
            del self.tensors[name]

    def retype(self, name: str, type_name: str) -> None:
        """Store a matrix as random blocks of another type, with sane scales."""
        old = self.tensors[name]
        self.tensors[name] = random_blocks(name, type_name, old.shape)


def random_blocks(name: str, type_name: str, shape: tuple[int, ...]) -> QTensor:
    """Random codes whose values are about as small as weights: f16 scales are 0.01 to 0.02."""
    qtype = BY_NAME[type_name]
    rng = np.random.default_rng([qtype.ggml_id, *shape])
    num_rows = int(np.prod(shape[:-1]))
    if type_name in ("F32", "F64", "F16"):
        dtype = {"F32": "<f4", "F64": "<f4", "F16": "<f2"}[type_name]
        values = rng.normal(0, 0.05, (num_rows, shape[-1])).astype(dtype)
        if type_name == "F64":
            values = values.astype("<f8")
        return QTensor(name, qtype, shape, values.view(np.uint8))
    if type_name == "BF16":
        values = rng.normal(0, 0.05, (num_rows, shape[-1])).astype("<f4")
        upper = values.view("<u2").reshape(num_rows, -1, 2)[:, :, 1]
        return QTensor(name, qtype, shape, np.ascontiguousarray(upper).view(np.uint8))
    data = rng.integers(0, 256, (num_rows, qtype.row_bytes(shape[-1])), dtype=np.uint8)
    blocks = data.reshape(-1, qtype.block_bytes)
    for offset in F16_OFFSETS.get(type_name, []):
        scales = rng.uniform(0.0005, 0.001, len(blocks)).astype("<f2")
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    if type_name == "IQ1_M":  # the scale's nibbles lie in the upper halves of four words
        for i, nibble in enumerate((0x0, 0x0, 0x1, 0x1)):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | nibble << 4
    if type_name == "MXFP4":
        blocks[:, 0] = 120
    if type_name == "NVFP4":
        blocks[:, :4] = 24
    return QTensor(name, qtype, shape, data)


def e_series() -> WildModel:
    """The usual form: scalars where converters write them, K and V on owning layers only."""
    model = _e_series()
    return WildModel(dict(model.metadata), dict(model.tensors))


@cache
def _e_series() -> WildModel:
    metadata = {
        "general.architecture": "gemma4",
        "general.type": "model",
        "general.name": "Wild",
        "gemma4.block_count": LAYERS,
        "gemma4.context_length": 512,
        "gemma4.embedding_length": HIDDEN,
        "gemma4.feed_forward_length": FFN,
        "gemma4.attention.head_count": HEADS,
        "gemma4.attention.head_count_kv": KV_HEADS,
        "gemma4.attention.key_length": FULL_HEAD_DIM,
        "gemma4.attention.value_length": FULL_HEAD_DIM,
        "gemma4.attention.key_length_swa": HEAD_DIM,
        "gemma4.attention.value_length_swa": HEAD_DIM,
        "gemma4.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma4.attention.sliding_window": 32,
        "gemma4.attention.sliding_window_pattern": list(SLIDING),
        "gemma4.attention.shared_kv_layers": SHARED,
        "gemma4.embedding_length_per_layer_input": PLE,
        "gemma4.rope.freq_base": 1e6,
        "gemma4.rope.freq_base_swa": 1e4,
        "gemma4.final_logit_softcapping": 30.0,
        **vocabulary(),
    }
    model = WildModel(metadata, {})
    model.add("token_embd.weight", vocab_size(), HIDDEN)
    model.add("per_layer_token_embd.weight", vocab_size(), PLE * LAYERS)
    model.add("per_layer_model_proj.weight", PLE * LAYERS, HIDDEN)
    for name, size in (("per_layer_proj_norm", PLE), ("output_norm", HIDDEN)):
        model.tensors[f"{name}.weight"] = ones(f"{name}.weight", size)
    half = FULL_HEAD_DIM // 2
    freqs = np.array([1.0] * (half // 4) + [1e30] * (half - half // 4), np.float32)
    model.tensors["rope_freqs.weight"] = float_tensor("rope_freqs.weight", freqs)
    for index in range(LAYERS):
        _add_layer(model, index)
    return model


def ones(name: str, size: int) -> QTensor:
    return float_tensor(name, np.ones(size, np.float32))


def head_dim(index: int) -> int:
    return HEAD_DIM if SLIDING[index] else FULL_HEAD_DIM


def _add_layer(model: WildModel, index: int) -> None:
    prefix, width = f"blk.{index}.", head_dim(index)
    norms = {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"}
    for name in sorted(norms):
        full = f"{prefix}{name}.weight"
        model.tensors[full] = ones(full, HIDDEN)
    model.tensors[f"{prefix}attn_q_norm.weight"] = ones(f"{prefix}attn_q_norm.weight", width)
    model.add(f"{prefix}attn_q.weight", HEADS * width, HIDDEN)
    model.add(f"{prefix}attn_output.weight", HIDDEN, HEADS * width)
    model.add(f"{prefix}ffn_gate.weight", FFN, HIDDEN)
    model.add(f"{prefix}ffn_up.weight", FFN, HIDDEN)
    model.add(f"{prefix}ffn_down.weight", HIDDEN, FFN)
    model.add(f"{prefix}inp_gate.weight", PLE, HIDDEN)
    model.add(f"{prefix}proj.weight", HIDDEN, PLE)
    if index < LAYERS - SHARED:
        add_kv(model, index)


def add_kv(model: WildModel, index: int) -> None:
    """K, V and the K norm of a layer."""
    prefix, width = f"blk.{index}.", head_dim(index)
    model.add(f"{prefix}attn_k.weight", KV_HEADS * width, HIDDEN)
    model.add(f"{prefix}attn_v.weight", KV_HEADS * width, HIDDEN)
    model.tensors[f"{prefix}attn_k_norm.weight"] = ones(f"{prefix}attn_k_norm.weight", width)


# ---- HF folders ----------------------------------------------------------------------------------


@dataclass
class WildFolder:
    """What an HF folder is made of."""

    config: dict[str, Any]
    tensors: dict[str, NDArray[Any]]
    dtype: str = "F32"
    num_shards: int = 1
    index: bool = True
    files: dict[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        path = folder / "model"
        path.mkdir()
        (path / "config.json").write_text(json.dumps(self.config))
        names = list(self.tensors)
        bounds = [len(names) * n // self.num_shards for n in range(self.num_shards + 1)]
        weight_map = {}
        for number in range(self.num_shards):
            file = "model.safetensors"
            if self.num_shards > 1:
                file = f"model-{number + 1:05}-of-{self.num_shards:05}.safetensors"
            part = {n: self.tensors[n] for n in names[bounds[number] : bounds[number + 1]]}
            (path / file).write_bytes(safetensors_bytes(part, self.dtype))
            weight_map |= dict.fromkeys(part, file)
        if self.num_shards > 1 and self.index:
            content = json.dumps({"metadata": {}, "weight_map": weight_map})
            (path / "model.safetensors.index.json").write_text(content)
        for name, content in self.files.items():
            (path / name).write_bytes(content)
        return path


def safetensors_bytes(tensors: Mapping[str, NDArray[Any]], dtype: str = "F32") -> bytes:
    """A whole file; float32 arrays are stored as `dtype`, others as they are."""
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = 0
    for name, values in tensors.items():
        raw, kind = values.tobytes(), _KINDS.get(values.dtype.name, "F32")
        if kind == "F32" and dtype == "BF16":
            raw, kind = (values.view(np.uint32) >> 16).astype("<u2").tobytes(), "BF16"
        elif kind == "F32" and dtype == "F16":
            raw, kind = values.astype("<f2").tobytes(), "F16"
        header[name] = {
            "dtype": kind,
            "shape": list(values.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        offset += len(raw)
        parts.append(raw)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


_KINDS = {"float32": "F32", "int8": "I8", "uint32": "U32", "uint8": "U8"}

_HF_NAMES = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "post_norm": "post_per_layer_input_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "token_embd": "embed_tokens",
    "per_layer_token_embd": "embed_tokens_per_layer",
    "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm",
    "output_norm": "norm",
}


def hf_name(gguf_name: str, prefix: str) -> str:
    bare = gguf_name.removesuffix(".weight")
    if bare.startswith("blk."):
        _, index, rest = bare.split(".", 2)
        return f"{prefix}layers.{index}.{_HF_NAMES[rest]}.weight"
    return f"{prefix}{_HF_NAMES[bare]}.weight"


def text_config() -> dict[str, Any]:
    """The text part of config.json, as transformers writes it."""
    kinds = ["sliding_attention" if s else "full_attention" for s in SLIDING]
    return {
        "model_type": "gemma4_text",
        "vocab_size": vocab_size(),
        "vocab_size_per_layer_input": vocab_size(),
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "global_head_dim": FULL_HEAD_DIM,
        "hidden_size_per_layer_input": PLE,
        "num_kv_shared_layers": SHARED,
        "use_double_wide_mlp": False,
        "sliding_window": 32,
        "layer_types": kinds,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1e6,
                "partial_rotary_factor": 0.25,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "tie_word_embeddings": True,
    }


def hf_folder(prefix: str = "model.language_model.", model_type: str = "gemma4") -> WildFolder:
    """The same weights as an HF folder, by default of the multimodal class."""
    model = e_series()
    del model.tensors["rope_freqs.weight"]
    tensors = {
        hf_name(name, prefix): tensor.data.view(np.float32).reshape(tensor.shape)
        for name, tensor in model.tensors.items()
    }
    if model_type.endswith("_text"):
        config = text_config() | {"architectures": ["Gemma4ForCausalLM"]}
    else:
        config = {
            "model_type": model_type,
            "architectures": ["Gemma4ForConditionalGeneration"],
            "text_config": text_config(),
            "tie_word_embeddings": True,
        }
    return WildFolder(config, tensors, files={"tokenizer.json": tokenizer_json()})
