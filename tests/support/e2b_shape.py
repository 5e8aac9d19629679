"""A GGUF file of E2B's real widths, with as few layers as show all of its kinds, and a cut
vocabulary.

Its weights are one row of random blocks, repeated: for what bytes and shapes decide, not values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from culet.formats.gguf_writer import float_tensor, write_gguf
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME
from support.tiny_tokenizer import tiny_metadata

HIDDEN, PLE, HEADS, VOCABULARY, WINDOW = 1536, 256, 8, 8192, 512
HEAD_DIM = {"sliding": 256, "full": 512}
# One layer of each kind that owns its K and V, and one of each that shares them and is wide.
KINDS = ("sliding", "full", "sliding", "full")
NUM_OWNING = 2
FFN = (6144, 6144, 12288, 12288)
_SCALES = {"Q4_0": 0, "Q6_K": 208}  # where a block has its f16 scale


def write_e2b_shape(path: Path) -> Path:
    """About 140 MB; types as in Google's QAT file: Q4_0, the tables in Q6_K."""
    layers = len(KINDS)
    tensors = [
        _matrix("token_embd", "Q6_K", VOCABULARY, HIDDEN),
        _matrix("per_layer_token_embd", "Q6_K", VOCABULARY, layers * PLE),
        _matrix("per_layer_model_proj", "BF16", layers * PLE, HIDDEN),
        _ones("per_layer_proj_norm", PLE),
        _ones("output_norm", HIDDEN),
        _rope_freqs(),
    ]
    for index in range(layers):
        tensors += _layer(index)
    write_gguf(path, _metadata(), tensors)
    return path


def _metadata() -> dict[str, Any]:
    vocabulary = tiny_metadata()
    pieces, types = vocabulary["tokenizer.ggml.tokens"], vocabulary["tokenizer.ggml.token_type"]
    spare = range(VOCABULARY - len(pieces))
    vocabulary["tokenizer.ggml.tokens"] = pieces + [f"<unused{n}>".encode() for n in spare]
    vocabulary["tokenizer.ggml.token_type"] = types + [5] * len(spare)
    return {
        "general.architecture": "gemma4",
        "gemma4.block_count": len(KINDS),
        "gemma4.context_length": 131072,
        "gemma4.embedding_length": HIDDEN,
        "gemma4.feed_forward_length": list(FFN),
        "gemma4.attention.head_count": HEADS,
        "gemma4.attention.head_count_kv": 1,
        "gemma4.attention.key_length": HEAD_DIM["full"],
        "gemma4.attention.value_length": HEAD_DIM["full"],
        "gemma4.attention.key_length_swa": HEAD_DIM["sliding"],
        "gemma4.attention.value_length_swa": HEAD_DIM["sliding"],
        "gemma4.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma4.attention.sliding_window": WINDOW,
        "gemma4.attention.sliding_window_pattern": [kind == "sliding" for kind in KINDS],
        "gemma4.attention.shared_kv_layers": len(KINDS) - NUM_OWNING,
        "gemma4.embedding_length_per_layer_input": PLE,
        "gemma4.rope.freq_base": 1e6,
        "gemma4.rope.freq_base_swa": 1e4,
        "gemma4.final_logit_softcapping": 30.0,
        **vocabulary,
    }


def _layer(index: int) -> list[QTensor]:
    prefix, width, ffn = f"blk.{index}.", HEAD_DIM[KINDS[index]], FFN[index]
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
    matrices = {
        "attn_q": (HEADS * width, HIDDEN),
        "attn_output": (HIDDEN, HEADS * width),
        "ffn_gate": (ffn, HIDDEN),
        "ffn_up": (ffn, HIDDEN),
        "ffn_down": (HIDDEN, ffn),
        "inp_gate": (PLE, HIDDEN),
        "proj": (HIDDEN, PLE),
    }
    tensors = [_ones(prefix + name, HIDDEN) for name in norms]
    tensors.append(_ones(f"{prefix}attn_q_norm", width))
    if index < NUM_OWNING:
        matrices |= {"attn_k": (width, HIDDEN), "attn_v": (width, HIDDEN)}
        tensors.append(_ones(f"{prefix}attn_k_norm", width))
    return tensors + [_matrix(prefix + name, "Q4_0", *shape) for name, shape in matrices.items()]


def _ones(name: str, size: int) -> QTensor:
    return float_tensor(f"{name}.weight", np.ones(size, np.float32))


def _rope_freqs() -> QTensor:
    half = HEAD_DIM["full"] // 2
    values = np.array([1.0] * (half // 4) + [1e30] * (half - half // 4), np.float32)
    return float_tensor("rope_freqs.weight", values)


def _matrix(name: str, type_name: str, rows: int, cols: int) -> QTensor:
    qtype = BY_NAME[type_name]
    rng = np.random.default_rng(cols)
    if type_name == "BF16":
        row = (rng.normal(0, 0.02, cols).astype("<f4").view("<u4") >> 16).astype("<u2")
        data = row.view(np.uint8)
    else:
        blocks = rng.integers(0, 256, (cols // qtype.block_values, qtype.block_bytes), np.uint8)
        offset = _SCALES[type_name]
        blocks[:, offset : offset + 2] = np.array([0.003], "<f2").view(np.uint8)
        data = blocks.reshape(-1)
    return QTensor(f"{name}.weight", qtype, (rows, cols), np.broadcast_to(data, (rows, len(data))))
