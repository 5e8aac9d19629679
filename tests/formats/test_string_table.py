"""StringTable: what it gives back, and that no malformed array makes it read past the buffer."""

from __future__ import annotations

import gc
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from culet._native import StringTable


def encoded(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(s)) + s for s in strings)


def as_file(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)


@given(st.lists(st.binary(max_size=20), max_size=40), st.binary(max_size=9))
def test_scan_returns_the_strings_and_where_they_end(strings: list[bytes], before: bytes) -> None:
    file = as_file(before + encoded(strings) + b"after")
    table = StringTable.scan(file, len(before), len(strings))
    assert len(table) == len(strings)
    assert list(table) == strings
    assert table.end_offset == len(file) - len(b"after")


@given(st.lists(st.binary(max_size=20), max_size=40))
def test_from_list_returns_the_strings(strings: list[bytes]) -> None:
    table = StringTable.from_list(strings)
    assert list(table) == strings
    assert table.end_offset == 0


def test_indices() -> None:
    table = StringTable.from_list([b"a", b"", b"c\x00c"])
    assert (table[0], table[1], table[2], table[-1], table[-3]) == (
        b"a",
        b"",
        b"c\0c",
        b"c\0c",
        b"a",
    )
    for index in (3, -4, 2**40):
        with pytest.raises(IndexError):
            table[index]


def test_from_list_refuses_other_types() -> None:
    with pytest.raises(TypeError):
        StringTable.from_list(["text"])  # type: ignore[list-item]


def test_the_table_keeps_its_file_alive() -> None:
    table = StringTable.scan(as_file(encoded([b"x" * 1000] * 100)), 0, 100)
    gc.collect()
    assert all(s == b"x" * 1000 for s in table)


@pytest.mark.parametrize("count", [3, 2**40, 2**61, 2**64 - 1])
def test_count_past_the_end(count: int) -> None:
    with pytest.raises(ValueError, match="string"):
        StringTable.scan(as_file(encoded([b"a", b"b"])), 0, count)


@pytest.mark.parametrize("length", [3, 2**31, 2**40, 2**63, 2**64 - 1, 2**64 - 9])
def test_length_past_the_end_names_the_string(length: int) -> None:
    file = as_file(encoded([b"a"]) + struct.pack("<Q", length) + b"bb" + b"\0" * 0)
    with pytest.raises(ValueError, match=f"string 1 has a length of {length} bytes where 2 follow"):
        StringTable.scan(file, 0, 2)


@pytest.mark.parametrize("offset", [18, 19, 2**40, 2**64 - 1])
def test_offset_past_the_end(offset: int) -> None:
    file = as_file(encoded([b"a", b""]))
    with pytest.raises(ValueError, match="string"):
        StringTable.scan(file, offset, 1)


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 210), st.integers(0, 30))
def test_noise_is_read_as_python_would_or_refused(data: bytes, offset: int, count: int) -> None:
    expected: list[bytes] | None = []
    position = offset
    for _ in range(count):
        length = int.from_bytes(data[position : position + 8], "little")
        if position + 8 > len(data) or position + 8 + length > len(data):
            expected = None
            break
        assert expected is not None
        expected.append(data[position + 8 : position + 8 + length])
        position += 8 + length
    if expected is None or offset > len(data):
        with pytest.raises(ValueError):
            StringTable.scan(as_file(data), offset, count)
    else:
        assert list(StringTable.scan(as_file(data), offset, count)) == expected


def test_flipped_bytes_never_crash() -> None:
    rng = random.Random(1)
    good = bytearray(encoded([rng.randbytes(rng.randrange(12)) for _ in range(50)]))
    for _ in range(2000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        try:
            table = StringTable.scan(as_file(bytes(bad)), 0, 50)
        except ValueError:
            continue
        assert sum(len(s) + 8 for s in table) == table.end_offset <= len(bad)
