"""Tells a Gemma text model from everything else that comes in the same kinds of file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from culet.errors import ModelFileError, UnsupportedModelError

SERVED = ("gemma4", "gemma3")

_HF_SERVED = {
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "gemma4_unified": "gemma4",
    "gemma4_unified_text": "gemma4",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
}
_PROJECTOR = "a vision or audio projector (mmproj), which goes beside a text model"
_DRAFT = "a draft model, which only speeds up its target model and isn't used by culet"
_ADAPTER = "a LoRA adapter, which goes with its base model; merge it into that one"
_EMBEDDING = "an embedding model, which can't generate text"
_IMATRIX = "an importance matrix for quantising, which holds no weights"

_OTHER_ARCHITECTURES = {
    "clip": _PROJECTOR,
    "gemma4-assistant": _DRAFT,
    "gemma4_mtp": _DRAFT,
    "gemma4_assistant": _DRAFT,
    "gemma4_unified_assistant": _DRAFT,
    "dflash": _DRAFT,
    "eagle3": _DRAFT,
    "imatrix": _IMATRIX,
    "gemma-embedding": _EMBEDDING,
    "embedding_gemma2": _EMBEDDING,
    "llama-embed": _EMBEDDING,
    "pangu-embedded": _EMBEDDING,
    "t5encoder": _EMBEDDING,
    "siglip_vision_model": "a vision tower, which goes beside a text model",
}
_OTHER_TYPES = {"mmproj": _PROJECTOR, "adapter": _ADAPTER, "imatrix": _IMATRIX}


def gguf_architecture(metadata: Mapping[str, Any], file_label: str) -> str:
    """The architecture of a GGUF text model that culet serves.

    Raises:
        ModelFileError: `general.architecture` is missing or no string.
        UnsupportedModelError: the file is something else; one sentence says what.
    """
    file_type = metadata.get("general.type", "model")
    if file_type in _OTHER_TYPES:
        raise _not_a_text_model(file_label, _OTHER_TYPES[file_type])
    if "adapter.type" in metadata:  # older ones have no general.type
        raise _not_a_text_model(file_label, _ADAPTER)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        found = "missing" if architecture is None else f"{architecture!r}"
        raise ModelFileError(f"{file_label}: general.architecture is {found}, must be a string")
    if architecture not in SERVED:
        raise _unserved(file_label, "general.architecture", architecture)
    if file_type != "model":
        raise UnsupportedModelError(
            f"{file_label}: general.type is {file_type!r}, only 'model' is served"
        )
    return architecture


def hf_architecture(config: Mapping[str, Any], file_label: str) -> str:
    """The architecture, in GGUF's spelling, of the model that a config.json describes.

    Raises:
        ModelFileError: `model_type` is missing or no string.
        UnsupportedModelError: another kind of model, or weights in a quantised scheme.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        found = "missing" if model_type is None else f"{model_type!r}"
        raise ModelFileError(f"{file_label}: model_type is {found}, must be a string")
    if model_type not in _HF_SERVED:
        raise _unserved(file_label, "model_type", model_type)
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        if part.get("quantization_config") is not None:
            raise UnsupportedModelError(
                f"{file_label}: the weights are quantised by the scheme "
                f"{_scheme(part['quantization_config'])}, only unquantised folders are served"
            )
    # EmbeddingGemma calls itself gemma3_text; its attention in both directions tells it.
    if model_type.startswith("gemma3") and config.get("use_bidirectional_attention") is True:
        raise _not_a_text_model(file_label, _EMBEDDING)
    return _HF_SERVED[model_type]


def hf_adapter(file_label: str) -> UnsupportedModelError:
    """The error for a folder or file that holds a LoRA adapter."""
    return _not_a_text_model(file_label, _ADAPTER)


def _scheme(quantization_config: Any) -> str:
    """The kind's name as the ecosystem spells it: fp8, awq, compressed-tensors, NVFP4."""
    if isinstance(quantization_config, Mapping):
        method = quantization_config.get("quant_method")
        algorithm = quantization_config.get("quant_algo") or quantization_config.get("format")
        if algorithm and method:
            return f"{method} ({algorithm})"
        if method or algorithm:
            return str(method or algorithm)
    return "of an unnamed kind"


def _unserved(file_label: str, key: str, value: str) -> UnsupportedModelError:
    what = _OTHER_ARCHITECTURES.get(value)
    if what is None and "bert" in value:
        what = _EMBEDDING
    if what is not None:
        return _not_a_text_model(file_label, what)
    return UnsupportedModelError(
        f"{file_label}: {key} is {value!r}, only Gemma 4 and Gemma 3 are served"
    )


def _not_a_text_model(file_label: str, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{file_label}: this is {what}; it is not a text model")
