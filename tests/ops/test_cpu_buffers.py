"""Memory of large results: used again, but never while anybody holds it."""

from __future__ import annotations

import numpy as np

from culet.ops.cpu.buffers import Buffers

SHAPE = (4, 1 << 16)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_once_nobody_holds_it() -> None:
    buffers = Buffers()
    first = buffers.empty(SHAPE)
    place = address(first)
    del first
    assert address(buffers.empty(SHAPE)) == place
    assert address(buffers.empty((2, 1 << 16))) == place


def test_memory_in_use_is_left_alone() -> None:
    buffers = Buffers()
    first = buffers.empty(SHAPE)
    first[:] = 1.0
    row = first[2]
    del first
    for _ in range(3):
        second = buffers.empty(SHAPE)
        second[:] = 2.0
        assert (row == 1.0).all()
        assert second.shape == SHAPE


def test_a_larger_need_replaces_what_is_free() -> None:
    buffers = Buffers()
    held = buffers.empty(SHAPE)
    held[:] = 3.0
    for rows in (5, 6, 7):
        assert buffers.empty((rows, 1 << 16)).shape == (rows, 1 << 16)
    assert len(buffers._blocks) == 2
    assert (held == 3.0).all()


def test_small_arrays_are_ordinary_ones() -> None:
    buffers = Buffers()
    array = buffers.empty((3, 5))
    assert array.shape == (3, 5)
    assert array.dtype == np.float32
    assert not buffers._blocks
