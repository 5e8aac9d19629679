"""Culet runs Google's Gemma models on the machine you already have."""

from culet.errors import (
    BackendError,
    CapacityError,
    CuletError,
    ModelFileError,
    RequestError,
    UnsupportedModelError,
    UsageError,
)

__all__ = [
    "BackendError",
    "CapacityError",
    "CuletError",
    "ModelFileError",
    "RequestError",
    "UnsupportedModelError",
    "UsageError",
]
