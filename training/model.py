"""The built-in model's shape: a Gemma 4 E-series checkpoint with every feature of E2B in small.

Its row lengths are multiples of 256 wherever a K-quant needs them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from training.tokenizer import VOCAB_SIZE, Vocabulary

NUM_LAYERS = 10
NUM_SHARED_LAYERS = 5
PERIOD = 5  # every fifth layer is full: the last owning layers are a sliding one, then a full one
HIDDEN = 256
HEAD_DIM = 64
FFN_DIM = 256
PLE_DIM = 32
WINDOW = 64
CONTEXT = 4096
RMS_EPS = 1e-6


def make_config(vocabulary: Vocabulary) -> Gemma4TextConfig:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    kinds = ["sliding_attention"] * (PERIOD - 1) + ["full_attention"]
    # Typed as open because `global_head_dim` is no declared field.
    make: Callable[..., Gemma4TextConfig] = Gemma4TextConfig
    return make(
        vocab_size=VOCAB_SIZE,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=FFN_DIM,
        num_hidden_layers=NUM_LAYERS,
        num_kv_shared_layers=NUM_SHARED_LAYERS,
        layer_types=kinds * (NUM_LAYERS // PERIOD),
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=HEAD_DIM,
        global_head_dim=2 * HEAD_DIM,
        hidden_size_per_layer_input=PLE_DIM,
        use_double_wide_mlp=True,
        sliding_window=WINDOW,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=RMS_EPS,
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
        pad_token_id=ids["<pad>"],
        bos_token_id=ids["<bos>"],
        eos_token_id=[ids["<eos>"], ids["<turn|>"], ids["<|tool_response>"]],
    )


def make_model(config: Gemma4TextConfig, seed: int) -> Gemma4ForCausalLM:
    """A fresh fp32 model, ready to be trained."""
    torch.manual_seed(seed)
    model: Gemma4ForCausalLM = Gemma4ForCausalLM(config).to(torch.float32)  # type: ignore[arg-type]
    with torch.no_grad():
        for index, layer in enumerate(model.model.layers):
            # Scores are q.k with no 1/sqrt(head_dim): the norms' gains start with half of it each.
            attention = layer.self_attn
            attention.q_norm.weight.fill_(attention.head_dim**-0.25)
            if hasattr(attention, "k_norm"):
                attention.k_norm.weight.fill_(attention.head_dim**-0.25)
            # Fixed, different, exact in bf16: whoever drops or swaps one gets other answers.
            layer.layer_scalar.fill_(0.75 + 0.0625 * index)
    return model
