"""Makers of damaged and hostile safetensors files, one for each check of the header's reader.

Each maker returns the bytes of one file.
"""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from hostile.makers import Maker, registering

MAKERS: list[Maker] = []
maker = registering(MAKERS)


def file(header: bytes | dict[str, Any], data: bytes = b"", length: int | None = None) -> bytes:
    """A whole file; `length` claims another header length than it has."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@maker("the file is empty")
def empty() -> bytes:
    return b""


@maker("has 7 bytes, a safetensors file begins with 8 of length")
def seven_bytes() -> bytes:
    return b"1234567"


@maker("claims a header of [0-9]+ bytes, 992 bytes follow")
def random_bytes() -> bytes:
    return random.Random(0).randbytes(1000)


@maker("claims a header of 2000000000000000000 bytes")
def huge_header_length() -> bytes:
    return file({"a": entry()}, bytes(8), length=2 * 10**18)


@maker("claims a header of 100 bytes, 2 bytes follow")
def header_past_the_end() -> bytes:
    return file(b"{}", length=100)


@maker("at most 4194304 are read")
def header_above_the_limit() -> bytes:
    return file(b"{" + b" " * (4 << 20) + b"}")


@maker("the header is not JSON")
def not_json() -> bytes:
    return file(b"{'a': 1}")


@maker("the header is not JSON")
def not_utf8() -> bytes:
    return file(b'{"\xff": 1}')


@maker("the header is not JSON")
def deeply_nested_json() -> bytes:
    return file(b"[" * 200_000)


@maker("the header is not JSON")
def number_of_a_million_digits() -> bytes:
    return file(b'{"a": ' + b"9" * 1_000_000 + b"}")


@maker("the header is a JSON list, must be an object")
def not_an_object() -> bytes:
    return file(b"[]")


@maker("the header has the key 'a' twice")
def duplicate_name() -> bytes:
    one = json.dumps(entry())
    return file(f'{{"a": {one}, "a": {one}}}'.encode(), bytes(8))


@maker("tensor a has no description")
def no_description() -> bytes:
    return file({"a": 1})


@maker("tensor a has dtype 'F4X', which safetensors doesn't have")
def unknown_dtype() -> bytes:
    return file({"a": entry("F4X")}, bytes(8))


@maker("tensor a has dtype None")
def no_dtype() -> bytes:
    return file({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8))


@maker(r"tensor a has dtype \['F32'\]")
def dtype_of_another_type() -> bytes:
    return file({"a": entry(["F32"])}, bytes(8))


@maker(r"tensor a has shape \[-2\], must be")
def negative_size() -> bytes:
    return file({"a": entry(shape=[-2])}, bytes(8))


@maker(r"tensor a has shape \[2.0\], must be")
def fractional_size() -> bytes:
    return file({"a": entry(shape=[2.0])}, bytes(8))


@maker("tensor a has shape None, must be")
def no_shape() -> bytes:
    return file({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8))


@maker(r"tensor a has shape \[1, 1, .*, must be up to 8 sizes")
def many_dimensions() -> bytes:
    return file({"a": entry(shape=[1] * 10_000)}, bytes(8))


@maker(r"tensor a has data_offsets \[8, 0\], must be")
def reversed_range() -> bytes:
    return file({"a": entry(offsets=[8, 0])}, bytes(8))


@maker(r"tensor a has data_offsets \[0\], must be")
def half_a_range() -> bytes:
    return file({"a": entry(offsets=[0])}, bytes(8))


@maker(r"tensor a has data_offsets \[-8, 0\], must be")
def negative_range() -> bytes:
    return file({"a": entry(offsets=[-8, 0])}, bytes(8))


@maker("tensor a has 8 bytes, F32 of shape .3. takes 12")
def range_of_another_size() -> bytes:
    return file({"a": entry(shape=[3])}, bytes(8))


@maker("tensor a has 8 bytes, F32 of shape .* takes")
def shape_whose_product_wraps() -> bytes:
    return file({"a": entry(shape=[1 << 62, 1 << 62, 2])}, bytes(8))


@maker("tensor a ends at byte [0-9]+, the file at [0-9]+")
def range_past_the_end() -> bytes:
    return file({"a": entry(shape=[3], offsets=[0, 12])}, bytes(8))


@maker("tensor a ends at byte [0-9]+, the file at [0-9]+")
def cut_by_one_byte() -> bytes:
    return file({"a": entry()}, bytes(7))


@maker("tensors a and b overlap")
def overlap() -> bytes:
    return file({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12))


@maker("tensors a and b overlap")
def same_range_twice() -> bytes:
    return file({"a": entry(), "b": entry()}, bytes(8))


@maker("4 bytes between a and b belong to no tensor")
def hole() -> bytes:
    return file({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20))


@maker("4 bytes after the last tensor belong to no tensor")
def bytes_after_the_end() -> bytes:
    return file({"a": entry()}, bytes(12))
