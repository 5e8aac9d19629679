"""Parses the header of one safetensors file: names, types, shapes and where the bytes lie.

Distrusts every number. Knows nothing of folders or of models.
Format: https://github.com/huggingface/safetensors (u64 header length, JSON, data without holes)
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, TypeGuard

from culet.errors import ModelFileError
from culet.formats.mapped import MappedFile

MAX_HEADER_BYTES = 4 << 20  # headers of the largest published shards are below 1 MB
MAX_DIMS = 8

# Bits a value, by dtype. Known to the format; which ones hold weights is decided elsewhere.
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its dtype's name, its shape, and its bytes [start, end) in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def parse_header(file: MappedFile, *, data_required: bool = True) -> list[Entry]:
    """All tensors in order of their bytes; `ModelFileError` if the file is not what it claims.

    Args:
        data_required: False accepts a file whose weights are cut off (for checks of headers).
    """
    if file.size < 8:
        raise _error(file, f"has {file.size} bytes, a safetensors file begins with 8 of length")
    length = int.from_bytes(file.data[:8].tobytes(), "little")
    if length > min(MAX_HEADER_BYTES, file.size - 8):
        raise _error(
            file,
            f"claims a header of {length} bytes, {file.size - 8} bytes follow and at most "
            f"{MAX_HEADER_BYTES} are read",
        )
    header = parse_json_object(file.data[8 : 8 + length].tobytes(), f"{file.path}: the header")
    entries = [
        _entry(file, name, value, 8 + length)
        for name, value in header.items()
        if name != "__metadata__"
    ]
    entries.sort(key=lambda e: (e.start, e.end))
    end = _check_tiling(file, entries, 8 + length)
    if data_required and end < file.size:
        raise _error(file, f"{file.size - end} bytes after the last tensor belong to no tensor")
    if data_required and end > file.size:
        cut = next(e for e in entries if e.end > file.size)
        raise _error(
            file,
            f"tensor {cut.name} ends at byte {cut.end}, the file at {file.size}: it is cut off "
            "(an unfinished download?)",
        )
    return entries


def parse_json_object(raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object without duplicate keys; `ModelFileError` beginning with `what` otherwise."""
    duplicates: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in items:
            if key in result:
                duplicates.append(key)
            result[key] = value
        return result

    try:
        parsed = json.loads(raw.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{what} is not JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise ModelFileError(f"{what} is a JSON {type(parsed).__name__}, must be an object")
    if duplicates:
        raise ModelFileError(f"{what} has the key {duplicates[0]!r} twice")
    return parsed


def _entry(file: MappedFile, name: str, value: Any, data_start: int) -> Entry:
    if not isinstance(value, dict):
        raise _error(file, f"tensor {name} has no description")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _error(file, f"tensor {name} has dtype {dtype!r}, which safetensors doesn't have")
    if not _is_sizes(shape) or len(shape) > MAX_DIMS:
        raise _error(
            file, f"tensor {name} has shape {_short(shape)}, must be up to {MAX_DIMS} sizes"
        )
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _error(
            file, f"tensor {name} has data_offsets {_short(offsets)}, must be [start, end]"
        )
    start, end = data_start + offsets[0], data_start + offsets[1]
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != 8 * (end - start):
        raise _error(
            file,
            f"tensor {name} has {end - start} bytes, {dtype} of shape {_short(shape)} takes "
            f"{-(-bits // 8)}",
        )
    return Entry(name, dtype, tuple(shape), start, end)


def _check_tiling(file: MappedFile, entries: list[Entry], data_start: int) -> int:
    """The format wants every byte of data to belong to exactly one tensor; returns their end."""
    position, previous = data_start, "the header"
    for entry in entries:
        if entry.start < position:
            raise _error(file, f"tensors {previous} and {entry.name} overlap")
        if entry.start > position:
            raise _error(
                file,
                f"{entry.start - position} bytes between {previous} and {entry.name} belong to "
                f"no tensor",
            )
        position, previous = entry.end, entry.name
    return position


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _error(file: MappedFile, what: str) -> ModelFileError:
    return ModelFileError(f"{file.path}: {what}")
