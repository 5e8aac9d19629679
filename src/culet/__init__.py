"""Culet runs Google's Gemma models on the machine you already have."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from culet.errors import (
    BackendError,
    CapacityError,
    CuletError,
    ModelFileError,
    RequestError,
    UnsupportedModelError,
    UsageError,
)

if TYPE_CHECKING:
    from culet.engine.request import SamplingParams
    from culet.llm.facade import LLM, load
    from culet.llm.memory import MemoryReport
    from culet.llm.results import ChatCompletion, Completion, Piece

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "CapacityError",
    "ChatCompletion",
    "Completion",
    "CuletError",
    "LLM",
    "MemoryReport",
    "ModelFileError",
    "Piece",
    "RequestError",
    "SamplingParams",
    "UnsupportedModelError",
    "UsageError",
    "load",
]

# Imported when first asked for: `import culet` shall cost next to nothing.
_LAZY = {
    "LLM": "culet.llm.facade",
    "load": "culet.llm.facade",
    "MemoryReport": "culet.llm.memory",
    "ChatCompletion": "culet.llm.results",
    "Completion": "culet.llm.results",
    "Piece": "culet.llm.results",
    "SamplingParams": "culet.engine.request",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'culet' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
