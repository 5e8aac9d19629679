"""Writes GGUF files (version 3, little-endian), whole or split. Knows nothing of what they mean."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from culet._native import StringTable
from culet.errors import UsageError
from culet.formats.atomic import replacing
from culet.formats.checkpoint import TensorInfo
from culet.formats.gguf_header import (
    ARRAY,
    BOOL,
    DEFAULT_ALIGNMENT,
    MAGIC,
    SCALARS,
    STRING,
)
from culet.formats.shards import shard_name
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME

_TYPE_IDS = {
    "u8": 0,
    "i8": 1,
    "u16": 2,
    "i16": 3,
    "u32": 4,
    "i32": 5,
    "f32": 6,
    "bool": BOOL,
    "u64": 10,
    "i64": 11,
    "f64": 12,
}
_ARRAY_TYPES = {np.dtype(f"<{SCALARS[i]}"): i for i in SCALARS if i != BOOL}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number written with a type of its own: u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool."""

    type_name: str
    value: float


def float_tensor(name: str, values: NDArray[Any]) -> QTensor:
    """A tensor of float32 or float16 values, not copied if contiguous."""
    qtype = BY_NAME[{"float32": "F32", "float16": "F16"}[values.dtype.name]]
    data = np.ascontiguousarray(values).view(np.uint8)
    rows = data.reshape(-1, qtype.row_bytes(values.shape[-1]))
    return QTensor(name, qtype, values.shape, rows)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[QTensor],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
) -> None:
    """Write one file; it appears under its name only when it is complete.

    Args:
        metadata: by key: str, bool, int (u32 where it fits, else i32, i64 or u64), float (f32),
            `Scalar`, numpy array, list of str, bytes, bool, int (i32) or float (f32),
            or StringTable.
        tensors: written in this order; data may be mapped and is copied piece by piece. Their
            `scale` isn't written (give it as a tensor of its own), so it must be None.
    """
    if alignment != DEFAULT_ALIGNMENT:
        metadata = {**metadata, "general.alignment": alignment}
    with replacing(path) as file:
        _write(file, metadata, tensors, alignment)


def write_split_gguf(
    folder: Path,
    stem: str,
    metadata: Mapping[str, Any],
    tensors: Sequence[QTensor],
    *,
    num_shards: int,
) -> list[Path]:
    """Write `num_shards` files named STEM-00001-of-0000N.gguf; returns their paths.

    Each holds about as many tensors as the others; the metadata is in the first.
    """
    bounds = [len(tensors) * n // num_shards for n in range(num_shards + 1)]
    paths = []
    for number in range(num_shards):
        own = {
            "split.no": Scalar("u16", number),
            "split.count": Scalar("u16", num_shards),
            "split.tensors.count": Scalar("i32", len(tensors)),
        }
        paths.append(folder / shard_name(stem, number + 1, num_shards, ".gguf"))
        shard_tensors = tensors[bounds[number] : bounds[number + 1]]
        write_gguf(paths[-1], {**metadata, **own} if number == 0 else own, shard_tensors)
    return paths


def encode_key(key: str, value: Any) -> bytes:
    """One key-value as it lies in a file; values as in `write_gguf`."""
    try:
        type_id, payload = _encode(key, value)
    except (struct.error, OverflowError) as error:
        raise UsageError(f"{key}: a GGUF value of its type can't hold {value!r}") from error
    return _string(key) + struct.pack("<I", type_id) + payload


def encode_header(keys: Sequence[bytes], tensors: Sequence[TensorInfo], alignment: int) -> bytes:
    """What precedes the weights, without the padding after it.

    Args:
        keys: as `encode_key` gives them.
        tensors: their bytes follow in this order, each at the next multiple of `alignment`.
    """
    parts = [MAGIC + struct.pack("<IQQ", 3, len(tensors), len(keys)), *keys]
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        parts.append(_string(tensor.name) + struct.pack("<I", len(dims)))
        parts.append(struct.pack(f"<{len(dims)}QIQ", *dims, tensor.qtype.ggml_id, offset))
        offset += -(-tensor.num_bytes // alignment) * alignment
    return b"".join(parts)


def _write(
    file: BinaryIO, metadata: Mapping[str, Any], tensors: Sequence[QTensor], alignment: int
) -> None:
    for tensor in tensors:
        assert tensor.scale is None, f"{tensor.name}: the scale must be a tensor of its own"
    keys = [encode_key(key, value) for key, value in metadata.items()]
    infos = [TensorInfo(t.name, t.qtype, t.shape, t.num_bytes) for t in tensors]
    file.write(encode_header(keys, infos, alignment))
    for tensor in tensors:
        file.write(b"\0" * (-file.tell() % alignment))
        file.write(np.ascontiguousarray(tensor.data).data)
    file.write(b"\0" * (-file.tell() % alignment))


def _encode(key: str, value: Any) -> tuple[int, bytes]:
    """Type id and bytes of one value."""
    if isinstance(value, str):
        return STRING, _string(value)
    if isinstance(value, StringTable):
        return ARRAY, _strings(list(value))
    if isinstance(value, np.ndarray):
        return ARRAY, _array(key, value)
    if isinstance(value, list):
        return ARRAY, _list(key, value)
    scalar = value if isinstance(value, Scalar) else _typed(key, value)
    type_id = _TYPE_IDS[scalar.type_name]
    return type_id, struct.pack(f"<{SCALARS[type_id]}", scalar.value)


def _typed(key: str, value: Any) -> Scalar:
    if isinstance(value, bool):
        return Scalar("bool", value)
    if isinstance(value, float):
        return Scalar("f32", value)
    if isinstance(value, int):
        ranges = {"u32": (0, 1 << 32), "i32": (-1 << 31, 0), "i64": (-1 << 63, 1 << 63)}
        fitting = [name for name, (low, high) in ranges.items() if low <= value < high]
        return Scalar([*fitting, "u64"][0], value)
    raise UsageError(f"{key}: a GGUF value can't be of type {type(value).__name__}")


def _list(key: str, values: list[Any]) -> bytes:
    if values and all(isinstance(v, str | bytes) for v in values):
        return _strings([v if isinstance(v, bytes) else v.encode() for v in values])
    if all(isinstance(v, bool) for v in values):
        return _array(key, np.array(values, dtype=np.bool_))
    if all(isinstance(v, int) for v in values):
        return _array(key, np.array(values, dtype=np.int32))
    return _array(key, np.array(values, dtype=np.float32))


def _array(key: str, values: NDArray[Any]) -> bytes:
    type_id = BOOL if values.dtype == np.bool_ else _ARRAY_TYPES.get(values.dtype)
    if type_id is None or values.ndim != 1:
        raise UsageError(f"{key}: a GGUF array can't hold {values.ndim}-d {values.dtype}")
    return struct.pack("<IQ", type_id, values.size) + values.tobytes()


def _strings(values: list[bytes]) -> bytes:
    parts = [struct.pack("<IQ", STRING, len(values))]
    for value in values:
        parts += [struct.pack("<Q", len(value)), value]
    return b"".join(parts)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
