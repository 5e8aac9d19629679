"""The values of stored tensors: the numpy reference decoder of every ggml type.

Checked bit for bit against the `gguf` package; never the fast path.
"""

from __future__ import annotations

from dataclasses import replace

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


def decode(tensor: QTensor) -> Float32Array:
    """float32 of tensor.shape: all values, times the tensor's own scale where it has one.

    Raises ModelFileError for a tensor whose bytes contradict its shape or whose F64 values float32
    can't hold, and UnsupportedModelError for integer types.
    """
    check_tensor(tensor)
    row_scale = scale_of_rows(tensor)
    out = np.empty((tensor.num_rows, tensor.row_values), np.float32)
    for rows in row_slices(tensor.num_rows, tensor.row_values):
        scale = None if row_scale is None else row_scale[rows]
        planes = unpack_rows(tensor.qtype, tensor.data[rows], tensor.name, scale)
        out[rows] = planes_to_float(planes)
    return out.reshape(tensor.shape)


def decode_rows(tensor: QTensor, row_ids: NDArray[np.integer]) -> Float32Array:
    """float32 [n, row_values]: the rows with these ids, of leading dimensions flattened.

    Reads only those rows. Raises IndexError for an id outside of the tensor, else as `decode`.
    """
    outside = row_ids[(row_ids < 0) | (row_ids >= tensor.num_rows)]
    if outside.size:
        raise IndexError(
            f"tensor {tensor.name} has rows 0 to {tensor.num_rows - 1}, not {int(outside[0])}"
        )
    scale = scale_of_rows(tensor)
    gathered = replace(
        tensor,
        shape=(len(row_ids), tensor.row_values),
        data=tensor.data[row_ids],
        scale=None if scale is None else scale[row_ids],
    )
    return decode(gathered)
