"""Any stored tensor -> planes of integer codes and scales, without loss; and planes -> values.

This is the specification that the kernels' re-encoding is tested against, and with `blocks` the
reference decoder. Knows no kernel's tile layout. What the parts mean is in `forms`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from culet.errors import ModelFileError, UnsupportedModelError
from culet.quant.forms import FORMS, PlaneForm
from culet.quant.tensor import QTensor
from culet.quant.types import QuantType
from culet.quant.unpack import U8, UNPACK, Parts
from culet.quant.unpack_iq import UNPACK_IQ
from culet.quant.unpack_k import UNPACK_K

Float32Array = NDArray[np.float32]

_UNPACK = UNPACK | UNPACK_K | UNPACK_IQ

# Rows are unpacked in slices of this many values, so that temporaries stay at some 20 MB.
_SLICE_VALUES = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Planes:
    """The canonical re-encoding of a tensor with N rows of K values; `forms` has the formula.

    Attributes:
        form: how values follow from the parts.
        codes: uint8 [N, K]; for floating-point forms the values, as float32 or float16 [N, K], or
            as uint16 bit patterns of bf16.
        f16_scales, f16_mins: float16 [N, K / f16_group], where the form has them.
        sub_scales: int8, or uint8 for the bytes of E8M0 and UE4M3, [N, K / sub_group].
        sub_mins: uint8 [N, K / sub_group].
        row_scale: float32 [N], a last factor on all values of a row; None counts as 1.
    """

    form: PlaneForm
    codes: NDArray[Any]
    f16_scales: NDArray[np.float16] | None = None
    f16_mins: NDArray[np.float16] | None = None
    sub_scales: NDArray[np.int8] | U8 | None = None
    sub_mins: U8 | None = None
    row_scale: Float32Array | None = None

    @property
    def num_rows(self) -> int:
        return int(self.codes.shape[0])

    @property
    def row_values(self) -> int:
        return int(self.codes.shape[1])


def to_planes(tensor: QTensor) -> Planes:
    """The planes of a whole tensor; its leading dimensions are flattened into rows.

    A float32 tensor whose values are all exactly bf16 becomes bf16. Raises ModelFileError for a
    tensor whose bytes contradict its shape or whose F64 values float32 can't hold, and
    UnsupportedModelError for integer types.
    """
    check_tensor(tensor)
    row_scale = scale_of_rows(tensor)
    if not FORMS[tensor.qtype.name].code_bits:
        return _plain_planes(tensor.qtype, tensor.data, tensor.name, row_scale, find_bf16=True)
    codes = np.empty((tensor.num_rows, tensor.row_values), np.uint8)
    slices = []
    for rows in row_slices(tensor.num_rows, tensor.row_values):
        planes = unpack_rows(tensor.qtype, tensor.data[rows], tensor.name, None)
        codes[rows] = planes.codes
        slices.append(planes)
    parts: dict[str, NDArray[Any] | None] = {}
    for part in ("f16_scales", "f16_mins", "sub_scales", "sub_mins"):
        found = [a for a in (getattr(planes, part) for planes in slices) if a is not None]
        parts[part] = np.concatenate(found) if found else None
    return Planes(FORMS[tensor.qtype.name], codes, **parts, row_scale=row_scale)


def planes_to_float(planes: Planes) -> Float32Array:
    """float32 [N, K]: the values, exactly those that ggml's reference decoding gives."""
    # Infinite and NaN scales are data here, not accidents.
    with np.errstate(all="ignore"):
        values = _values(planes) if planes.form.code_bits else _plain_values(planes)
        if planes.row_scale is not None:
            values = values * planes.row_scale[:, None]
    return values


def unpack_rows(qtype: QuantType, data: U8, name: str, row_scale: Float32Array | None) -> Planes:
    """The planes of rows that were checked before; data uint8 [N, row_bytes]."""
    form = FORMS[qtype.name]
    if not form.code_bits:
        return _plain_planes(qtype, data, name, row_scale, find_bf16=False)
    num_rows = len(data)
    blocks = np.ascontiguousarray(data).reshape(-1, qtype.block_bytes)
    parts: Parts = _UNPACK[qtype.name](blocks)

    def rows(part: NDArray[Any] | None) -> NDArray[Any] | None:
        if part is None:
            return None
        per_row = data.shape[1] // qtype.block_bytes * part.shape[1]
        return part.reshape(num_rows, per_row)

    return Planes(
        form,
        cast(U8, rows(parts.codes)),
        f16_scales=rows(parts.f16_scales),
        f16_mins=rows(parts.f16_mins),
        sub_scales=rows(parts.sub_scales),
        sub_mins=rows(parts.sub_mins),
        row_scale=row_scale,
    )


def check_tensor(tensor: QTensor) -> None:
    """Refuse integer types, parts of blocks, and bytes that aren't what type and shape ask for."""
    qtype = tensor.qtype
    if 0 in tensor.shape:
        raise ModelFileError(f"tensor {tensor.name} has shape {tensor.shape}, that is no values")
    if qtype.is_integer:
        raise UnsupportedModelError(
            f"tensor {tensor.name} holds {qtype.name} integers where weights are needed"
        )
    if tensor.row_values % qtype.block_values:
        raise ModelFileError(
            f"tensor {tensor.name} has rows of {tensor.row_values} values, "
            f"but {qtype.name} stores multiples of {qtype.block_values}"
        )
    expected = (tensor.num_rows, qtype.row_bytes(tensor.row_values))
    if tensor.data.shape != expected:
        raise ModelFileError(
            f"tensor {tensor.name} has {tensor.data.shape} bytes, "
            f"but {qtype.name} of shape {tensor.shape} needs {expected}"
        )


def scale_of_rows(tensor: QTensor) -> Float32Array | None:
    """The tensor's own scale as float32 [num_rows], or None."""
    if tensor.scale is None:
        return None
    scale = tensor.scale.reshape(-1).astype(np.float32)
    if not scale.size or tensor.num_rows % scale.size:
        raise ModelFileError(
            f"tensor {tensor.name} has {scale.size} scales for {tensor.num_rows} rows, "
            "but needs 1, or one per leading index"
        )
    return np.repeat(scale, tensor.num_rows // scale.size)


def row_slices(num_rows: int, row_values: int) -> Iterator[slice]:
    """Runs of rows of about a million values."""
    step = max(1, _SLICE_VALUES // max(1, row_values))
    for first in range(0, num_rows, step):
        yield slice(first, min(first + step, num_rows))


def _plain_planes(
    qtype: QuantType, data: U8, name: str, row_scale: Float32Array | None, find_bf16: bool
) -> Planes:
    data = np.ascontiguousarray(data)
    if qtype.name == "F16":
        return Planes(FORMS["F16"], data.view("<f2"), row_scale=row_scale)
    if qtype.name == "BF16":
        return Planes(FORMS["BF16"], data.view("<u2"), row_scale=row_scale)
    values = data.view("<f4") if qtype.name == "F32" else _exact_float32(data.view("<f8"), name)
    halves = values.view("<u2").reshape(*values.shape, 2)
    if find_bf16 and not halves[:, :, 0].any():
        return Planes(FORMS["BF16"], np.ascontiguousarray(halves[:, :, 1]), row_scale=row_scale)
    return Planes(FORMS["F32"], values, row_scale=row_scale)


def _exact_float32(values: NDArray[np.float64], name: str) -> Float32Array:
    with np.errstate(all="ignore"):
        rounded = values.astype(np.float32)
        inexact = (rounded != values) & ~np.isnan(values)
    if inexact.any():
        first = float(values[inexact][0])
        raise ModelFileError(
            f"tensor {name} is F64 and holds {first!r}, but only values that float32 holds exactly "
            "are read"
        )
    return rounded


def _plain_values(planes: Planes) -> Float32Array:
    if planes.form.code == "bf16":
        return (planes.codes.astype(np.uint32) << 16).view(np.float32)
    return planes.codes.astype(np.float32)


def _values(planes: Planes) -> Float32Array:
    form = planes.form
    group = form.sub_group or form.f16_group
    values: Float32Array
    if form.code == "codebook":
        values = np.array(form.codebook, np.float32)[planes.codes]
    else:
        values = planes.codes.astype(np.float32) - np.float32(form.offset)
    grouped = values.reshape(planes.num_rows, -1, group)
    grouped *= _scales(planes)[:, :, None]
    if form.min == "add":
        grouped += _float32(planes.f16_mins)[:, :, None]
    elif form.min == "subtract":
        grouped -= _times_sub(planes, planes.f16_mins, planes.sub_mins)[:, :, None]
    return values


def _scales(planes: Planes) -> Float32Array:
    """float32 [N, K / group], group being the smaller of the form's two groups."""
    form = planes.form
    if form.scale == "f16":
        return _float32(planes.f16_scales)
    if form.scale == "f16_times_int":
        factor = np.float32(2.0**form.factor_log2)
        return _times_sub(planes, planes.f16_scales, planes.sub_scales) * factor
    assert planes.sub_scales is not None
    table = _E8M0_HALVES if form.scale == "e8m0" else _UE4M3_HALVES
    return table[planes.sub_scales]


def _times_sub(
    planes: Planes,
    f16: NDArray[np.float16] | None,
    integers: NDArray[np.int8] | U8 | None,
) -> Float32Array:
    """float32 [N, K / sub_group] of f16 factors times the integers of their groups."""
    assert integers is not None
    per_f16 = planes.form.f16_group // planes.form.sub_group
    grouped = integers.astype(np.float32).reshape(planes.num_rows, -1, per_f16)
    product = _float32(f16)[:, :, None] * grouped
    return product.reshape(planes.num_rows, -1)


def _float32(f16: NDArray[np.float16] | None) -> Float32Array:
    assert f16 is not None
    return f16.astype(np.float32)


def _e8m0_halves() -> Float32Array:
    """2^(e - 128) by byte: halved, since the E2M1 codebook is doubled.

    In ggml 255 is not NaN but 2^127, and 0 and 1 are subnormal.
    """
    return np.ldexp(1.0, np.arange(256) - 128).astype(np.float32)


def _ue4m3_halves() -> Float32Array:
    """Half of the UE4M3 numbers (4 exponent bits of bias 7, 3 mantissa bits) by byte.

    Bit 7 is ignored, and the NaN pattern 0x7f counts as 0, as in ggml.
    """
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa, -9), normal) / 2
    return np.where(byte == 0x7F, 0, values).astype(np.float32)


_E8M0_HALVES = _e8m0_halves()
_UE4M3_HALVES = _ue4m3_halves()
