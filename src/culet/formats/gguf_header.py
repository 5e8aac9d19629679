"""Parses what precedes the weights in one GGUF file: key-values and tensor descriptions.

Distrusts every number: a length is compared with the bytes that are left before it is used, so
nothing here allocates more than the file is long. Knows nothing of split files or of models.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from culet._native import StringTable
from culet.errors import ModelFileError, UnsupportedModelError
from culet.formats.checkpoint import TensorInfo
from culet.formats.cursor import Cursor
from culet.formats.mapped import FileBytes
from culet.quant.types import quant_type

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
# The largest published models have about 60 keys and 2,200 tensors; these leave room and bound the
# time that a hostile header can take.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_KEY_BYTES = (1 << 16) - 1  # the format's own limit
MAX_TENSOR_NAME_BYTES = 1024
MAX_STRING_BYTES = 1 << 26
MAX_DIMS = 4
MIN_ALIGNMENT, MAX_ALIGNMENT = 8, 1 << 16
MAX_NAMED_TENSORS = 5  # in one message

STRING, ARRAY, BOOL = 8, 9, 7
# Value type id -> struct code of a scalar.
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "B",
    10: "Q",
    11: "q",
    12: "d",
}
_MIN_KEY_BYTES = 8 + 4 + 1  # length, type, value
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # length, number of dimensions, type, offset


@dataclass(frozen=True, slots=True)
class Located:
    """A tensor and where its bytes begin in the file."""

    info: TensorInfo
    start: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the weights.

    Attributes:
        metadata: str, int, float, bool, StringTable or numpy array, by key.
        tensors: in file order.
        key_spans: where in the file each key-value lies, from the length of its name on.
        num_bytes: up to the last tensor's description; padding and weights follow.
        alignment: of the weights.
    """

    version: int
    metadata: dict[str, Any]
    tensors: list[Located]
    key_spans: dict[str, tuple[int, int]]
    num_bytes: int
    alignment: int


def parse_header(file: FileBytes, *, data_required: bool = True) -> Header:
    """Parse and check a whole header.

    Args:
        data_required: False accepts a file whose weights are cut off (for checks of headers).

    Raises:
        ModelFileError: the file is not GGUF, damaged or cut; the message names the key or tensor.
        UnsupportedModelError: big-endian, an unread version, or tensor types that aren't served.
    """
    return _Parser(file, data_required).parse()


class _Parser(Cursor):
    """One pass over a header."""

    def __init__(self, file: FileBytes, data_required: bool) -> None:
        super().__init__(file)
        self.data_required = data_required

    def parse(self) -> Header:
        version = self._version()
        num_tensors = self.count("tensors", MAX_TENSORS)
        num_keys = self.count("keys", MAX_KEYS)
        self.check_room("keys", num_keys, _MIN_KEY_BYTES)
        metadata: dict[str, Any] = {}
        spans: dict[str, tuple[int, int]] = {}
        for index in range(num_keys):
            start = self.position
            key = self.name(f"key {index}", MAX_KEY_BYTES)
            if key in metadata:
                raise self.error(f"key {key} occurs twice")
            metadata[key] = self._value(key)
            spans[key] = (start, self.position)
        self.check_room("tensors", num_tensors, _MIN_TENSOR_BYTES)
        alignment = self._alignment(metadata)
        tensors = self._tensors(num_tensors, alignment)
        if self.data_required:
            self._check_overlap(tensors)
        return Header(version, metadata, tensors, spans, self.position, alignment)

    def _version(self) -> int:
        magic = self.take(4, "the magic").tobytes()
        if magic == MAGIC[::-1]:
            raise self._big_endian()
        if magic != MAGIC:
            raise self.error(f"begins with {magic!r}, a GGUF file begins with {MAGIC!r}")
        raw = self.take(4, "the version").tobytes()
        version = int.from_bytes(raw, "little")
        if version not in VERSIONS:
            if int.from_bytes(raw, "big") in (1, *VERSIONS):
                raise self._big_endian()
            raise UnsupportedModelError(
                f"{self.file.path}: GGUF version {version}, versions 2 and 3 are served"
            )
        return version

    def _big_endian(self) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.file.path}: a big-endian GGUF file, only little-endian ones are served"
        )

    # -- key-values ---------------------------------------------------------------------------

    def _value(self, key: str) -> Any:
        type_id = self.u32(f"the type of key {key}")
        if type_id == STRING:
            return self.text(f"key {key}", MAX_STRING_BYTES, errors="replace")
        if type_id == ARRAY:
            return self._array(key)
        code = self._scalar_code(type_id, key)
        raw = self.take(struct.calcsize(code), f"key {key}")
        value = struct.unpack(f"<{code}", raw.tobytes())[0]
        if type_id != BOOL:
            return value
        if value > 1:
            raise self.error(f"key {key} has {value} as its truth value, must be 0 or 1")
        return bool(value)

    def _array(self, key: str) -> StringTable | NDArray[Any]:
        type_id = self.u32(f"the element type of key {key}")
        count = self.u64(f"the length of key {key}")
        if type_id == STRING:
            return self._strings(key, count)
        if type_id == ARRAY:
            raise UnsupportedModelError(
                f"{self.file.path}: key {key} is an array of arrays, only flat arrays are served"
            )
        dtype = np.dtype(f"<{self._scalar_code(type_id, key)}")
        if count > self.num_left // dtype.itemsize:
            raise self.error(
                f"key {key} claims {count} values, only {self.num_left} bytes are left"
            )
        values = self.take(count * dtype.itemsize, f"key {key}").view(dtype)
        if type_id == BOOL:
            if count and values.max() > 1:
                raise self.error(f"key {key} has truth values other than 0 and 1")
            return values.view(np.bool_)
        # Native code wants aligned values; keys lie at any byte.
        return values if values.flags.aligned else values.copy()

    def _strings(self, key: str, count: int) -> StringTable:
        try:
            table = StringTable.scan(self.file.data, self.position, count)
        except ValueError as error:
            raise self.error(f"key {key}: {error}") from error
        self.position = table.end_offset
        return table

    def _scalar_code(self, type_id: int, key: str) -> str:
        code = SCALARS.get(type_id)
        if code is None:
            raise self.error(f"key {key} has value type {type_id}, types are 0 to 12")
        return code

    def _alignment(self, metadata: dict[str, Any]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        sane = (
            type(value) is int
            and MIN_ALIGNMENT <= value <= MAX_ALIGNMENT
            and value & (value - 1) == 0
        )
        if not sane:
            raise self.error(
                f"general.alignment is {value!r}, must be a power of two "
                f"from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
            )
        return int(value)

    # -- tensors ------------------------------------------------------------------------------

    def _tensors(self, num_tensors: int, alignment: int) -> list[Located]:
        """All descriptions; types that aren't served are collected and named together."""
        found: dict[str, tuple[TensorInfo, int]] = {}
        unserved: list[str] = []
        num_unserved = 0
        for index in range(num_tensors):
            name = self.name(f"tensor {index}", MAX_TENSOR_NAME_BYTES)
            if name in found:
                raise self.error(f"tensor {name} occurs twice")
            shape = self._shape(name)
            type_id = self.u32(f"the type of tensor {name}")
            offset = self.u64(f"the offset of tensor {name}")
            if offset % alignment:
                raise self.error(
                    f"tensor {name} has offset {offset}, must be a multiple of {alignment}"
                )
            try:
                info = self._info(name, type_id, shape)
            except UnsupportedModelError as error:
                num_unserved += 1
                if num_unserved <= MAX_NAMED_TENSORS:
                    unserved.append(str(error))
                continue
            found[name] = (info, offset)
        if unserved:
            more = num_unserved - len(unserved)
            rest = f"; and {more} more tensors" if more else ""
            raise UnsupportedModelError(f"{self.file.path}: {'; '.join(unserved)}{rest}")
        data_start = -(-self.position // alignment) * alignment
        return [self._located(info, data_start + offset) for info, offset in found.values()]

    def _shape(self, name: str) -> tuple[int, ...]:
        """In torch order, which is the reverse of the file's."""
        num_dims = self.u32(f"the dimensions of tensor {name}")
        if num_dims > MAX_DIMS:
            raise self.error(
                f"tensor {name} has {num_dims} dimensions, at most {MAX_DIMS} are read"
            )
        dims = [self.u64(f"the shape of tensor {name}") for _ in range(num_dims)]
        if 0 in dims:
            raise self.error(f"tensor {name} has shape {dims[::-1]}, all must be above 0")
        return tuple(reversed(dims)) or (1,)  # without dimensions, it is a single value

    def _info(self, name: str, type_id: int, shape: tuple[int, ...]) -> TensorInfo:
        qtype = quant_type(type_id, name)
        try:
            row_bytes = qtype.row_bytes(shape[-1])
        except ModelFileError as error:
            raise self.error(f"tensor {name}: {error}") from error
        return TensorInfo(name, qtype, shape, math.prod(shape[:-1]) * row_bytes)

    def _located(self, info: TensorInfo, start: int) -> Located:
        if self.data_required and start + info.num_bytes > self.file.size:
            raise self.error(
                f"tensor {info.name} ends at byte {start + info.num_bytes}, "
                f"the file at {self.file.size}: it is cut off (an unfinished download?)"
            )
        return Located(info, start)

    def _check_overlap(self, tensors: list[Located]) -> None:
        by_start = sorted(tensors, key=lambda t: t.start)
        for before, after in zip(by_start, by_start[1:], strict=False):
            if before.start + before.info.num_bytes > after.start:
                raise self.error(f"tensors {before.info.name} and {after.info.name} overlap")
