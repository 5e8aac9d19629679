"""Whole tiny models as GGUF files: random weights, a toy Gemma 4 vocabulary."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / part) for part in ("chat", "models")]

import numpy as np
import torch
from tiny import CONFIGS, Tiny, make_model, save_gguf
from toy_vocabularies import gemma4_metadata

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An E-series model that answers with random words."""
    vocabulary = gemma4_metadata()
    count = len(vocabulary["tokenizer.ggml.tokens"])
    sizes = {"vocab_size": count, "vocab_size_per_layer_input": count}
    model = make_model(Tiny("whole", "gemma4", sizes | {"max_position_embeddings": 96}))
    path = tmp_path_factory.mktemp("llm") / "whole.gguf"
    texts = {
        key: [piece.decode("utf-8", "surrogateescape") for piece in vocabulary[key]]
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
    }
    return save_gguf(model, path, metadata=vocabulary | texts)


@pytest.fixture(scope="session")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a tokenizer."""
    return save_gguf(make_model(CONFIGS[0]), tmp_path_factory.mktemp("bare") / "bare.gguf")


def random_ids(count: int, num_ids: int) -> list[int]:
    return np.random.default_rng(5).integers(0, num_ids, count).tolist()
