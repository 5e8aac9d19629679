"""Checked reading of config values. Knows value types and names, not what they mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from culet.errors import ModelFileError

# No count or width of a model is larger; a hostile file's must not reach an allocation.
_MAX_INTEGER = 1 << 31


class Fields:
    """Values by key, with one-sentence errors that name the file and the key.

    Args:
        values: GGUF metadata or a (part of a) HF config.
        label: the file, for messages.
        prefix: put before every key, such as `gemma4.`.
    """

    def __init__(self, values: Mapping[str, Any], label: str, prefix: str = "") -> None:
        self._values = values
        self.label = label
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self._values.get(self.prefix + key) is not None

    def raw(self, key: str) -> Any:
        """The value; `ModelFileError` if absent or null."""
        value = self._values.get(self.prefix + key)
        if value is None:
            raise ModelFileError(f"{self.label}: key {self.prefix}{key} is missing")
        return value

    def error(self, key: str, found: object, allowed: str) -> ModelFileError:
        """An error that names the key, the value found and the values allowed."""
        return ModelFileError(f"{self.label}: {self.prefix}{key} is {found!r}; {allowed}")

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        if default is not None and key not in self:
            return default
        return self._as_integer(key, self.raw(key), minimum)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number greater than 0."""
        if default is not None and key not in self:
            return default
        value = self.raw(key)
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise self.error(key, value, "it must be a number")
        if not (math.isfinite(value) and value > 0):
            raise self.error(key, value, "it must be finite and greater than 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """A truth value; false if absent."""
        value = self._values.get(self.prefix + key)
        if value is None:
            return False
        if not isinstance(value, bool | np.bool_):
            raise self.error(key, value, "it must be true or false")
        return bool(value)

    def is_list(self, key: str) -> bool:
        """Whether the value is present and an array."""
        value = self._values.get(self.prefix + key)
        return isinstance(value, np.ndarray | Sequence) and not isinstance(value, str)

    def items(self, key: str, count: int) -> list[Any]:
        """A list with one entry for each of `count` layers."""
        if not self.is_list(key):
            raise self.error(key, self.raw(key), f"it must be a list of {count}")
        values = list(self.raw(key))
        if len(values) != count:
            raise ModelFileError(
                f"{self.label}: {self.prefix}{key} is a list of {len(values)}; "
                f"the model has {count} layers"
            )
        return values

    def per_layer(self, key: str, count: int, minimum: int = 1) -> list[int]:
        """One whole number for each of `count` layers, from a list or from one value for all."""
        if not self.is_list(key):
            return [self.integer(key, minimum=minimum)] * count
        return [self._as_integer(key, value, minimum) for value in self.items(key, count)]

    def _as_integer(self, key: str, value: object, minimum: int) -> int:
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise self.error(key, value, "it must be a whole number")
        if not minimum <= value < _MAX_INTEGER:
            raise self.error(key, value, f"it must be at least {minimum} and below 2^31")
        return int(value)
