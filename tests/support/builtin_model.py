"""Files of the built-in model, and what marks tests that need them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from culet.builtin import MODEL_PATH

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "models" / "builtin"
Q4_K_PATH = FOLDER / "builtin-q4_k.gguf"
GOLDENS_PATH = ROOT / "tests" / "builtin" / "goldens.json"
# What scripts/train_builtin.py exports, as far as tests read it.
FILES = (FOLDER / "model.safetensors", Q4_K_PATH, MODEL_PATH, GOLDENS_PATH)
# Of training/goldens.py and training/model.py, whose imports need torch.
DIGEST_STRIDE = 256
FFN_DIM = 256
# Of the goldens, so many may be answered otherwise by any form but Q4_K, at near-ties.
MAX_DIFFERENT = 2

needs_builtin = pytest.mark.skipif(
    not all(path.exists() for path in FILES),
    reason="this checkout has no built-in model (scripts/train_builtin.py makes it)",
)


@cache
def goldens() -> tuple[dict[str, Any], ...]:
    """Rows of goldens.json; training/goldens.py says what is in them."""
    return tuple(json.loads(GOLDENS_PATH.read_text(encoding="utf-8")))
