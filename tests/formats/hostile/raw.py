"""GGUF files put together byte by byte, so that any of them can be wrong."""

from __future__ import annotations

import struct

U8, U32, F32, BOOL, STRING, ARRAY = 0, 4, 6, 7, 8, 9


def string(text: str | bytes, length: int | None = None) -> bytes:
    """A GGUF string; `length` claims another one than it has."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def key(name: str | bytes, type_id: int, payload: bytes) -> bytes:
    return string(name) + struct.pack("<I", type_id) + payload


def array(element_type: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", element_type, count) + payload


def tensor(
    name: str | bytes,
    dims: tuple[int, ...] = (4, 2),
    *,
    type_id: int = 0,
    offset: int = 0,
    num_dims: int | None = None,
) -> bytes:
    """The description of a tensor; by default F32 of 32 bytes."""
    count = len(dims) if num_dims is None else num_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, type_id, offset)


ARCHITECTURE = key("general.architecture", STRING, string("gemma4"))


def gguf(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"\0" * 64,
    *,
    magic: bytes = b"GGUF",
    version: bytes = struct.pack("<I", 3),
    num_keys: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """A whole file; `num_keys` and `num_tensors` claim other counts than it has."""
    keys = [ARCHITECTURE, *(keys or [])]
    tensors = tensors or []
    head = magic + version
    head += struct.pack("<Q", len(tensors) if num_tensors is None else num_tensors)
    head += struct.pack("<Q", len(keys) if num_keys is None else num_keys)
    head += b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data
