"""How a model wants to be sampled, from its own files. Knows keys of GGUF and of HF folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from culet.engine.request import SamplingParams
from culet.errors import ModelFileError, RequestError
from culet.formats.checkpoint import Checkpoint, folder_of

_GENERATION_CONFIG = "generation_config.json"
_GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
}
_GEMMA: dict[str, Any] = {"temperature": 1.0, "top_k": 64, "top_p": 0.95}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values for what a request leaves open; Gemma's recommended ones where the file is silent."""

    temperature: float = 1.0
    top_k: int = 64
    top_p: float = 0.95
    min_p: float = 0.0


def sampling_defaults(checkpoint: Checkpoint) -> SamplingDefaults:
    """The model's own defaults.

    Raises:
        ModelFileError: a value that no request could have.
    """
    if checkpoint.kind == "gguf":
        found = {field: checkpoint.metadata.get(key) for field, key in _GGUF_KEYS.items()}
        source = str(checkpoint.path)
    else:
        path = generation_config_path(checkpoint.path)
        config = _read_object(path)
        found = {field: config.get(field) for field in _GGUF_KEYS}
        if config.get("do_sample") is False:
            found["temperature"] = 0.0
        source = str(path)
    values = {field: _plain(value) for field, value in found.items() if value is not None}
    try:
        SamplingParams(**values)
    except RequestError as error:
        raise ModelFileError(f"{source}: the default sampling can't be used: {error}") from error
    return SamplingDefaults(**values)


def generation_config_path(model: Path) -> Path:
    """Where a safetensors folder, or the file of one, has its generation config."""
    return folder_of(model) / _GENERATION_CONFIG


def _plain(value: Any) -> Any:
    """GGUF numbers may be numpy scalars."""
    return value.item() if hasattr(value, "item") else value


def _read_object(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: can't be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path}: holds a {type(content).__name__}; it must be an object")
    return content
