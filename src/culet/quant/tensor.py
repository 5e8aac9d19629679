"""QTensor: the bytes of one stored tensor with their type and shape. No arithmetic here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from culet.quant.types import QuantType

# Rows of a tile of planes (csrc/layouts.h).
TILE_ROWS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """A tensor's values in tiled planes, as the CPU kernels want them and packed files hold them.

    Attributes:
        layout: the name of the planes' layout.
        data: uint8, the tiles of one matrix after the other, each beginning at a multiple of 64.
        owned: private memory; otherwise a view of a mapped file.
    """

    layout: str
    data: NDArray[np.uint8]
    owned: bool


@dataclass(frozen=True, slots=True, eq=False)
class QTensor:
    """One tensor as it lies in a file (usually a read-only view of a mapping).

    Attributes:
        name: the name in its file, for messages.
        qtype: how the bytes encode values.
        shape: torch order, rows first: a linear is [out_features, in_features].
        data: uint8 [prod(shape[:-1]), row_bytes], C-contiguous, possibly mapped and never copied.
        scale: factor on every decoded value (NVFP4's `.scale` tensor; one value, or one per
            leading index for stacked experts). None where the type needs none.
        tiles: set where the values lie in tiled planes; `data` has no rows then (`tiles.plain`
            gives a tensor that has them).
    """

    name: str
    qtype: QuantType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    scale: NDArray[np.float32] | None = field(default=None)
    tiles: Tiles | None = None

    @property
    def num_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def row_values(self) -> int:
        return self.shape[-1]

    @property
    def num_bytes(self) -> int:
        return int(self.data.nbytes)
