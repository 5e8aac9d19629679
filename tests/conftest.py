"""Settings that must stand before numpy is imported, and model files that several parts test with.

The models are whole and tiny: random weights, a toy Gemma 4 vocabulary.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# The suite's matrices are tiny: BLAS threads only wait for one another, on a busy machine for long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An E-series model that answers with random words."""
    # Imported here: most tests need no torch, which takes seconds.
    from support.tiny_models import save_whole_gguf

    return save_whole_gguf(tmp_path_factory.mktemp("whole") / "whole.gguf")


@pytest.fixture(scope="session")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a tokenizer."""
    from support.tiny_models import CONFIGS, make_model, save_gguf

    return save_gguf(make_model(CONFIGS[0]), tmp_path_factory.mktemp("bare") / "bare.gguf")
