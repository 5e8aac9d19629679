"""Opens a packed model (.culet): weights in kernel order, mapped as they are.

The file: a prelude of 64 bytes; the header of the GGUF file that the model is, byte for byte
(metadata, tokenizer, names, types, shapes); the served part; a raw part with what serving doesn't
need and planes can't regenerate, which is never mapped; an index in JSON, guarded by its hash.
Written by `packing`; docs/packed.md has it byte by byte.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from culet.errors import ModelFileError, UnsupportedModelError, UsageError
from culet.formats.checkpoint import TensorInfo
from culet.formats.gguf_header import Header, parse_header
from culet.formats.identify import gguf_architecture
from culet.formats.mapped import FilePart, MappedFile
from culet.formats.safetensors_header import parse_json_object
from culet.quant.tensor import QTensor, Tiles
from culet.quant.tiles import PLANES_VERSION, aligned_empty, tiles_bytes

# A byte above 127, a line ending and an end-of-file mark: damage by a text transfer shows at once.
MAGIC = b"\x8bCULET\r\x1a"
VERSION = 1
SUFFIX = ".culet"
PRELUDE = struct.Struct("<8sIIQQ32s")  # magic, version, zero, index offset and bytes, its SHA-256
HEADER_OFFSET = 64
ALIGNMENT = 64
GROUP_ALIGNMENT = 1 << 14  # pages are 4 KiB or 16 KiB
MAX_INDEX_BYTES = 1 << 26  # 131,072 tensors of 500 bytes
_CHUNK_BYTES = 8 << 20
_MAX_SLACK_BYTES = 1 << 20

LoadMode = Literal["mmap", "none", "mlock"]


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [offset, offset + num_bytes) of the file and their SHA-256."""

    offset: int
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies.

    Attributes:
        served: its planes or, with layout None, its rows; None for what serving leaves alone.
        layout: of the planes.
        raw: its rows in the part that is never mapped, where `served` doesn't give them back.
        source_sha256: of the rows.
    """

    served: Span | None
    layout: str | None
    raw: Span | None
    source_sha256: str


class PackedCheckpoint:
    """A packed model; see `culet.formats.checkpoint.Checkpoint`.

    Attributes:
        header: the parsed header of the GGUF file that this is.
        header_bytes: the same as it lies.
        entries: by tensor name.
        source_bytes: length of the GGUF file.
        source_sha256: its hash; None where the file had bytes that belong to nothing.
    """

    kind: Literal["gguf", "safetensors"] = "gguf"

    def __init__(self, path: Path, load_mode: LoadMode) -> None:
        """Use `open_packed`."""
        self.path = path
        self.load_mode = load_mode
        index, self.file_bytes = _read_index(path)
        reader = _IndexReader(path, index, self.file_bytes)
        self.served_bytes = reader.served_bytes()
        self._file = MappedFile(path, self.served_bytes)
        header = reader.header_span(self.served_bytes)
        start, end = header.offset, header.offset + header.num_bytes
        self.header_bytes = self._file.data[start:end]
        self.header: Header = parse_header(FilePart(path, self.header_bytes), data_required=False)
        self.metadata: Mapping[str, Any] = self.header.metadata
        self.architecture = gguf_architecture(self.metadata, str(path))
        self._infos = {t.info.name: t.info for t in self.header.tensors}
        self.entries = reader.entries(self._infos, self.served_bytes)
        self.header_span = header
        self.source_bytes, self.source_sha256 = reader.source(self.header)
        self._is_closed = False

    def tensor_names(self) -> list[str]:
        return list(self._infos)

    def info(self, name: str) -> TensorInfo:
        info = self._infos.get(name)
        if info is None:
            raise ModelFileError(f"{self.path}: tensor {name} is missing")
        return info

    def has_data(self, name: str) -> bool:
        return self.info(name) is not None and not self._is_closed

    def tensor(self, name: str) -> QTensor:
        info = self.info(name)
        if self._is_closed:
            raise UsageError(f"{self.path}: tensor {name} can't be read, the file is closed")
        entry = self.entries[name]
        row_bytes = info.qtype.row_bytes(info.shape[-1])
        if entry.served is None:
            data = self.raw_rows(name)
            return QTensor(name, info.qtype, info.shape, data)
        start, end = entry.served.offset, entry.served.offset + entry.served.num_bytes
        if entry.layout is None:
            rows = self._file.data[start:end].reshape(-1, row_bytes)
            return QTensor(name, info.qtype, info.shape, rows)
        owned = self.load_mode == "none"
        data = self._read(entry.served) if owned else self._file.data[start:end]
        tiles = Tiles(entry.layout, data, owned)
        nothing = np.empty((0, row_bytes), np.uint8)
        return QTensor(name, info.qtype, info.shape, nothing, tiles=tiles)

    def raw_rows(self, name: str) -> NDArray[np.uint8]:
        """A tensor's rows from the raw part, read into private memory."""
        raw = self.entries[name].raw
        assert raw is not None, f"{name} has no raw rows"
        info = self.info(name)
        return self._read(raw).reshape(-1, info.qtype.row_bytes(info.shape[-1]))

    def release(self, name: str) -> None:
        served = self.entries[name].served
        if served is not None:
            self._file.release(served.offset, served.offset + served.num_bytes)

    def expect_random_access(self, name: str) -> None:
        """Say that the rows of a look-up table will be read here and there."""
        served = self.entries[name].served
        if served is not None:
            self._file.expect_random_access(served.offset, served.offset + served.num_bytes)

    def check_unchanged(self) -> None:
        self._file.check_unchanged()

    def close(self) -> None:
        self._is_closed = True
        self._file.close()

    def lock(self, name: str) -> int:
        """Keep a tensor's mapped bytes in RAM; how many. `OSError` if that isn't allowed."""
        served = self.entries[name].served
        if served is None:
            return 0
        self._file.lock(served.offset, served.offset + served.num_bytes)
        return served.num_bytes

    def spans(self) -> Iterator[tuple[str, Span]]:
        """Every part of the file that has a hash, with its name."""
        yield "the header", self.header_span
        for name, entry in self.entries.items():
            if entry.served is not None:
                yield name, entry.served
            if entry.raw is not None:
                yield f"{name} (raw)", entry.raw

    def damaged(self) -> list[str]:
        """Names of the parts whose bytes don't have their hash; reads the whole file."""
        found = []
        with self.path.open("rb", buffering=0) as file:
            for name, span in self.spans():
                hasher = hashlib.sha256()
                for chunk in _chunks(file.fileno(), span):
                    hasher.update(chunk)
                if hasher.hexdigest() != span.sha256:
                    found.append(name)
        return found

    def _read(self, span: Span) -> NDArray[np.uint8]:
        """Bytes of the file in private memory, where kernels want them, the mapping untouched."""
        out = aligned_empty(span.num_bytes)
        left = out.data
        with self.path.open("rb", buffering=0) as file:
            file.seek(span.offset)
            while len(left):
                count = file.readinto(left)
                if not count:
                    raise ModelFileError(f"{self.path}: has been cut while it was open")
                left = left[count:]
        return out


def open_packed(path: Path, *, load_mode: LoadMode = "mmap") -> PackedCheckpoint:
    """Open a packed model.

    Args:
        load_mode: `none` reads planes into private memory instead of mapping them; `mlock` is the
            caller's to do.

    Raises:
        ModelFileError: damaged or cut; the message says where.
        UnsupportedModelError: written by another version, with layouts that this one doesn't know,
            or no text model.
    """
    return PackedCheckpoint(path, load_mode)


def most_source_bytes(header: Header) -> int:
    """Length of the longest GGUF file with this header that is written back as it was.

    Padding may be more than the alignment asks for, but nobody can make us write a terabyte of it.
    """
    tensors = sum(t.info.num_bytes + header.alignment for t in header.tensors)
    return header.num_bytes + header.alignment + tensors + _MAX_SLACK_BYTES


def _chunks(descriptor: int, span: Span) -> Iterator[bytes]:
    position, end = span.offset, span.offset + span.num_bytes
    while position < end:
        chunk = os.pread(descriptor, min(_CHUNK_BYTES, end - position), position)
        if not chunk:
            return
        yield chunk
        position += len(chunk)


def _read_index(path: Path) -> tuple[dict[str, Any], int]:
    """The index and the file's length; checks everything up to the index's hash."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            prelude = file.read(PRELUDE.size)
            if len(prelude) < PRELUDE.size:
                raise ModelFileError(f"{path}: cut within its first {PRELUDE.size} bytes")
            magic, version, zero, offset, num_bytes, digest = PRELUDE.unpack(prelude)
            if magic != MAGIC:
                raise ModelFileError(f"{path}: begins with {magic!r}, a packed file with {MAGIC!r}")
            if version != VERSION or zero:
                raise UnsupportedModelError(
                    f"{path}: packed file of version {version}, version {VERSION} is read; pack "
                    "the original again"
                )
            if num_bytes > MAX_INDEX_BYTES or offset + num_bytes != size:
                raise ModelFileError(
                    f"{path}: the index of {num_bytes} bytes should end the file at byte "
                    f"{offset + num_bytes}, the file ends at {size}"
                )
            file.seek(offset)
            raw = file.read(num_bytes)
    except OSError as error:
        raise UsageError(f"{path}: can't be read ({error.strerror})") from error
    if hashlib.sha256(raw).digest() != digest:
        raise ModelFileError(f"{path}: the index is damaged (its hash is another)")
    return parse_json_object(raw, f"{path}: the index"), size


class _IndexReader:
    """Checked reading of the index: every number is compared with the file before it is used."""

    def __init__(self, path: Path, index: Mapping[str, Any], file_bytes: int) -> None:
        self.path = path
        self.index = index
        self.file_bytes = file_bytes

    def served_bytes(self) -> int:
        return self._integer(self.index, "served_bytes", "the index", self.file_bytes, minimum=1)

    def header_span(self, served_bytes: int) -> Span:
        return self._span(self.index.get("header"), "the header", served_bytes)

    def source(self, header: Header) -> tuple[int, str | None]:
        source = self.index.get("source")
        if not isinstance(source, Mapping):
            raise self._error("the index has no source")
        sha256 = source.get("sha256")
        least = max((t.start + t.info.num_bytes for t in header.tensors), default=0)
        most = most_source_bytes(header)
        num_bytes = self._integer(source, "bytes", "the source", most, minimum=least)
        return num_bytes, None if sha256 is None else self._hash(source, "sha256", "the source")

    def entries(self, infos: Mapping[str, TensorInfo], served_bytes: int) -> dict[str, Entry]:
        tensors = self.index.get("tensors")
        if not isinstance(tensors, Mapping) or set(tensors) != set(infos):
            raise self._error("the tensors of the index aren't those of the header")
        found = {n: self._entry(tensors[n], info, served_bytes) for n, info in infos.items()}
        spans = [(n, s) for n, e in found.items() for s in (e.served, e.raw) if s is not None]
        spans.sort(key=lambda item: item[1].offset)
        for (before, a), (after, b) in zip(spans, spans[1:], strict=False):
            if a.offset + a.num_bytes > b.offset:
                raise self._error(f"tensors {before} and {after} overlap")
        return found

    def _entry(self, value: Any, info: TensorInfo, served_bytes: int) -> Entry:
        what = f"tensor {info.name}"
        if not isinstance(value, Mapping):
            raise self._error(f"{what} has no entry in the index")
        served = raw = None
        layout = value.get("layout")
        if "served" in value:
            served = self._span(value["served"], what, served_bytes)
            expected = info.num_bytes
            if layout is not None:
                self._check_layout(value, layout, what)
                is_matrix = len(info.shape) >= 2
                expected = tiles_bytes(info.shape, info.qtype.ggml_id, layout) if is_matrix else -1
                if expected < 0:
                    raise UnsupportedModelError(
                        f"{self.path}: {what} is {info.qtype.name} of shape {list(info.shape)} in "
                        f"layout {layout!r}, which isn't known; pack the original again"
                    )
            if served.num_bytes != expected or served.offset % ALIGNMENT:
                raise self._error(
                    f"{what} has {served.num_bytes} bytes at {served.offset}, as "
                    f"{layout or info.qtype.name} it has {expected} at a multiple of {ALIGNMENT}"
                )
        if "raw" in value:
            raw = self._span(value["raw"], what, self.file_bytes)
            if raw.num_bytes != info.num_bytes:
                raise self._error(
                    f"{what} has {raw.num_bytes} raw bytes, {info.qtype.name} takes "
                    f"{info.num_bytes}"
                )
        if served is None and raw is None:
            raise self._error(f"{what} lies nowhere")
        return Entry(served, layout, raw, self._hash(value, "source_sha256", what))

    def _check_layout(self, value: Mapping[str, Any], layout: Any, what: str) -> None:
        version = value.get("version")
        if not isinstance(layout, str) or version != PLANES_VERSION:
            raise UnsupportedModelError(
                f"{self.path}: {what} has layout {layout!r} of version {version!r}, layouts of "
                f"version {PLANES_VERSION} are read; pack the original again"
            )

    def _span(self, value: Any, what: str, end: int) -> Span:
        if not isinstance(value, Mapping):
            raise self._error(f"{what} has no place in the index")
        offset = self._integer(value, "offset", what, end, minimum=HEADER_OFFSET)
        num_bytes = self._integer(value, "bytes", what, end - offset, minimum=1)
        return Span(offset, num_bytes, self._hash(value, "sha256", what))

    def _integer(
        self, value: Mapping[str, Any], key: str, what: str, maximum: int, minimum: int
    ) -> int:
        found = value.get(key)
        if type(found) is not int or not minimum <= found <= maximum:
            raise self._error(f"{key} of {what} is {found!r}, must be {minimum} to {maximum}")
        return found

    def _hash(self, value: Mapping[str, Any], key: str, what: str) -> str:
        found = value.get(key)
        if not isinstance(found, str) or len(found) != 64:
            raise self._error(f"{key} of {what} is {found!r}, must be 64 hexadecimal digits")
        return found

    def _error(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {what}")
