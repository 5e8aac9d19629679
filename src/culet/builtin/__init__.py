"""The toy model that ships with the package; docs/builtin-model.md says what it can do."""

from __future__ import annotations

from pathlib import Path

MODEL_PATH = Path(__file__).with_name("builtin-q8_0.gguf")
NOTICE = (
    "no MODEL given, so this is the built-in toy, which knows little: "
    "name a GGUF file or a model folder to use a real one"
)
