"""Tiled planes as bytes: made from stored rows, cut by rows, and turned back. Knows no kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from culet._native import PLANES_VERSION, Packer, planes_bytes
from culet._native import stored_layout as _stored_layout
from culet.quant.tensor import TILE_ROWS, QTensor, Tiles
from culet.quant.types import BY_NAME, QuantType

__all__ = [
    "PLANES_VERSION",
    "Packer",
    "aligned_empty",
    "encode",
    "layout_of",
    "matrix",
    "num_matrices",
    "row_part",
    "stored_layout",
    "plain",
    "restore",
    "tiles_bytes",
]

_ALIGNMENT = 64
# Rows are encoded in slices of about so many stored bytes, a whole number of tiles each.
_SLICE_BYTES = 16 << 20


def num_matrices(shape: tuple[int, ...]) -> int:
    """How many matrices a tensor of two or more dimensions stacks: one for each expert."""
    return math.prod(shape[:-2])


def tiles_bytes(tensor_shape: tuple[int, ...], ggml_id: int, layout: str) -> int:
    """Bytes of a tensor's tiles; -1 if there is no such layout or it doesn't hold the type."""
    if max(tensor_shape) >= 1 << 31:  # the native side counts in 64 bits
        return -1
    *_, num_rows, num_cols = tensor_shape
    one = planes_bytes(layout, ggml_id, num_rows, num_cols)
    return one * num_matrices(tensor_shape) if one > 0 else -1


def stored_layout(qtype: QuantType) -> str:
    """The layout of a type's planes, values unseen (floats that are all bf16 get that instead)."""
    return _stored_layout(qtype.ggml_id)


def layout_of(packer: Packer, tensor: QTensor) -> str:
    """The layout of a stored tensor's planes; `ValueError` for F64 that float32 can't hold."""
    return packer.layout(
        tensor.qtype.ggml_id, tensor.num_rows, tensor.row_values, np.ascontiguousarray(tensor.data)
    )


def encode(packer: Packer, tensor: QTensor, layout: str) -> Iterator[tuple[QTensor, Tiles]]:
    """The tiles of a stored tensor in slices, each with the rows (a view) that it came from.

    Joined, the slices' bytes are the tensor's tiles.
    """
    num_rows = tensor.shape[-2]
    step = max(1, _SLICE_BYTES // max(1, tensor.data.shape[1]) // TILE_ROWS) * TILE_ROWS
    for matrix in range(num_matrices(tensor.shape)):
        for begin in range(0, num_rows, step):
            count = min(step, num_rows - begin)
            first = matrix * num_rows + begin
            rows = replace(
                tensor,
                shape=(count, tensor.row_values),
                data=tensor.data[first : first + count],
                scale=None,
            )
            size = tiles_bytes(rows.shape, tensor.qtype.ggml_id, layout)
            out = np.zeros(size, np.uint8)
            packer.encode(layout, tensor.qtype.ggml_id, count, tensor.row_values, rows.data, out)
            yield rows, Tiles(layout, out, owned=True)


def plain(tensor: QTensor, packer: Packer | None = None) -> QTensor:
    """The tensor with stored rows again: those it came from, or where several encodings have the
    same values (TQ1_0, vector codebooks), the values as F32. A tensor without tiles is returned.
    """
    if tensor.tiles is None:
        return tensor
    packer = packer or Packer(0)
    restored = restore(packer, tensor)
    if restored is not None:
        return replace(tensor, data=restored, tiles=None)
    values = np.empty((tensor.num_rows, tensor.row_values), np.float32)
    for rows, tiles in _matrices(tensor):
        packer.decode(tiles.layout, tensor.qtype.ggml_id, tiles.data, values[rows])
    return replace(tensor, qtype=BY_NAME["F32"], data=values.view(np.uint8), tiles=None)


def restore(packer: Packer, tensor: QTensor) -> NDArray[np.uint8] | None:
    """Stored rows of a tensor's tiles; None for a type whose rows don't follow from its values."""
    out = np.empty((tensor.num_rows, tensor.qtype.row_bytes(tensor.row_values)), np.uint8)
    for rows, tiles in _matrices(tensor):
        if not packer.restore(
            tiles.layout, tensor.qtype.ggml_id, tensor.row_values, tiles.data, out[rows]
        ):
            return None
    return out


def row_part(tensor: QTensor, begin: int, end: int) -> QTensor:
    """Rows [begin, end) of a matrix; a view unless tiles have to be cut inside."""
    shape = (end - begin, tensor.row_values)
    tiles = tensor.tiles
    if tiles is None:
        return replace(tensor, shape=shape, data=tensor.data[begin:end])
    if begin % TILE_ROWS or (end % TILE_ROWS and end != tensor.num_rows):
        return row_part(plain(tensor), begin, end)
    num_tiles = -(-tensor.num_rows // TILE_ROWS)
    tile_bytes = len(tiles.data) // num_tiles
    first, last = begin // TILE_ROWS, -(-end // TILE_ROWS)
    cut = replace(tiles, data=tiles.data[first * tile_bytes : last * tile_bytes])
    return replace(tensor, shape=shape, tiles=cut)


def matrix(tensor: QTensor, index: int) -> QTensor:
    """One [out, in] of a stacked [experts, out, in], as a view."""
    num_out = tensor.shape[1]
    scale = tensor.scale
    if scale is not None and len(scale) > 1:
        scale = scale[index : index + 1]
    one = replace(tensor, name=f"{tensor.name}[{index}]", shape=tensor.shape[1:], scale=scale)
    if tensor.tiles is None:
        return replace(one, data=tensor.data[index * num_out : (index + 1) * num_out])
    size = len(tensor.tiles.data) // tensor.shape[0]
    data = tensor.tiles.data[index * size : (index + 1) * size]
    return replace(one, tiles=replace(tensor.tiles, data=data))


def aligned_empty(num_bytes: int) -> NDArray[np.uint8]:
    """Private bytes that begin at a multiple of 64; contents undefined."""
    room = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + num_bytes]


def _matrices(tensor: QTensor) -> Iterator[tuple[slice, Tiles]]:
    """Rows and tiles of each matrix of a tensor with tiles."""
    assert tensor.tiles is not None
    count = num_matrices(tensor.shape)
    num_rows = tensor.shape[-2]
    size = len(tensor.tiles.data) // count
    for index in range(count):
        tiles = replace(tensor.tiles, data=tensor.tiles.data[index * size : (index + 1) * size])
        yield slice(index * num_rows, (index + 1) * num_rows), tiles
