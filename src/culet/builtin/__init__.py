"""The toy model for commands without MODEL, where a build ships it (training/ makes it)."""

from __future__ import annotations

from pathlib import Path

from culet.errors import UsageError

MODEL_PATH = Path(__file__).with_name("builtin-q8_0.gguf")
NOTICE = (
    "no MODEL given: this is the built-in toy, which knows very little; "
    "for a real model give a GGUF file, a model folder or owner/repo[:QUANT]"
)


def require_model() -> Path:
    """The model's file; `UsageError` in a build that ships none."""
    if not MODEL_PATH.exists():
        raise UsageError(
            "no MODEL given, and this build ships no model of its own "
            "(give a GGUF file, a model folder, or owner/repo)"
        )
    return MODEL_PATH
