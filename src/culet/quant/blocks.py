"""The values of stored tensors: the numpy reference decoder of every ggml type.

Checked bit for bit against the `gguf` package; never the fast path.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from culet.quant.planes import (
    Float32Array,
    check_tensor,
    planes_to_float,
    row_slices,
    scale_of_rows,
    unpack_rows,
)
from culet.quant.tensor import QTensor
from culet.quant.tiles import plain
from culet.quant.unpack import U8


def decode(tensor: QTensor) -> Float32Array:
    """float32 of tensor.shape: all values, times the tensor's own scale where it has one.

    Raises ModelFileError for a tensor whose bytes contradict its shape or whose F64 values float32
    can't hold, and UnsupportedModelError for integer types.
    """
    tensor = plain(tensor)
    check_tensor(tensor)
    return _decode(tensor, tensor.data, scale_of_rows(tensor)).reshape(tensor.shape)


def decode_rows(tensor: QTensor, row_ids: NDArray[np.integer]) -> Float32Array:
    """float32 [n, row_values]: the rows with these ids, of leading dimensions flattened.

    Reads only those rows. Raises IndexError for an id outside of the tensor, else as `decode`.
    """
    check_tensor(tensor)
    outside = row_ids[(row_ids < 0) | (row_ids >= tensor.num_rows)]
    if outside.size:
        raise IndexError(
            f"tensor {tensor.name} has rows 0 to {tensor.num_rows - 1}, not {int(outside[0])}"
        )
    row_scale = scale_of_rows(tensor)
    return _decode(tensor, tensor.data[row_ids], None if row_scale is None else row_scale[row_ids])


def _decode(tensor: QTensor, data: U8, row_scale: Float32Array | None) -> Float32Array:
    """float32 [n, row_values] of n rows of the tensor, a slice at a time."""
    out = np.empty((len(data), tensor.row_values), np.float32)
    for rows in row_slices(len(data), tensor.row_values):
        scale = None if row_scale is None else row_scale[rows]
        out[rows] = planes_to_float(unpack_rows(tensor.qtype, data[rows], tensor.name, scale))
    return out
