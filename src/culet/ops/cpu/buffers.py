"""Memory of large results, used again.

The system hands out fresh memory page by page, zeroed: for the logits of 16 rows of a vocabulary of
262,144 that is 1% of a step. Knows nothing of ops.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]

# Smaller ones come from the C library's heap, which keeps them at hand by itself.
_LEAST_VALUES = 1 << 16


class Buffers:
    """Float32 arrays that share blocks of memory, one after the other, never at once.

    A block is free when no array lies in it any more, views and slices included: they all hold a
    reference to it.
    """

    def __init__(self) -> None:
        self._blocks: list[Float32Array] = []

    def empty(self, shape: tuple[int, ...]) -> Float32Array:
        """An array [shape] of undefined values."""
        count = 1
        for size in shape:
            count *= size
        if count < _LEAST_VALUES:
            return np.empty(shape, dtype=np.float32)
        return self._block(count)[:count].reshape(shape)

    def _block(self, count: int) -> Float32Array:
        blocks = self._blocks
        free = [i for i in range(len(blocks)) if _num_references(blocks, i) <= _NOBODY]
        fitting = [i for i in free if self._blocks[i].size >= count]
        if fitting:
            return self._blocks[min(fitting, key=lambda i: self._blocks[i].size)]
        for i in reversed(free):  # each too small: the new one serves in their place
            del self._blocks[i]
        self._blocks.append(np.empty(count, dtype=np.float32))
        return self._blocks[-1]


def _num_references(blocks: list[Float32Array], i: int) -> int:
    return sys.getrefcount(blocks[i])


# What the list and the count itself hold: it differs between versions of Python.
_NOBODY = _num_references([np.empty(0, dtype=np.float32)], 0)
