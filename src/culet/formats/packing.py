"""Writes packed models (see `packed`) and turns them back into GGUF files, bit for bit.

One pass over the source in file order: re-encode, check that the planes give the rows back, hash,
write. What is not served comes after what is. Knows no model: the caller says what each tensor is.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from culet.errors import CuletError, ModelFileError
from culet.formats.atomic import replacing
from culet.formats.checkpoint import TensorInfo
from culet.formats.gguf import GgufCheckpoint
from culet.formats.gguf_header import Header, parse_header
from culet.formats.gguf_writer import encode_header
from culet.formats.mapped import FilePart
from culet.formats.packed import (
    ALIGNMENT,
    GROUP_ALIGNMENT,
    HEADER_OFFSET,
    MAGIC,
    PRELUDE,
    VERSION,
    Entry,
    PackedCheckpoint,
    most_source_bytes,
)
from culet.quant import tiles
from culet.quant.tensor import QTensor

# What serving does with a tensor: multiply with it, look rows up (or read it once), or nothing.
Role = Literal["planes", "rows", "raw"]

_SLICE_BYTES = 16 << 20
_MAX_PENDING = 3  # slices that are hashed and written while the next one is encoded


@dataclass(frozen=True, slots=True)
class PackSource:
    """A model as packing sees it: a GGUF file, whether it lies on disk or would be one.

    Attributes:
        header: what precedes the weights, without the padding after it.
        tensors: in the order of their bytes; `read` gives the rows of each.
        release: tells that a tensor's pages won't be read again soon.
        file: the bytes of the whole file, if it lies on disk as one.
    """

    header: NDArray[np.uint8]
    tensors: tuple[TensorInfo, ...]
    read: Callable[[str], QTensor]
    release: Callable[[str], None]
    file: NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class PackResult:
    """What was written.

    Attributes:
        served_bytes: what serving maps.
        raw_bytes: what is kept for unpacking alone.
        is_whole_file_hashed: whether unpacking gives the source file back byte for byte; False
            where it held bytes that belong to no tensor, or was split.
    """

    file_bytes: int
    served_bytes: int
    raw_bytes: int
    is_whole_file_hashed: bool


def source_of_gguf(checkpoint: GgufCheckpoint) -> PackSource:
    """A GGUF model as a source; shards, and a file with large holes, become one without."""
    file, header = checkpoint.shards[0]
    if len(checkpoint.shards) == 1 and file.size <= most_source_bytes(header):
        ordered = sorted(header.tensors, key=lambda t: t.start)
        return PackSource(
            header=file.data[: header.num_bytes],
            tensors=tuple(t.info for t in ordered),
            read=checkpoint.tensor,
            release=checkpoint.release,
            file=file.data,
        )
    keys = [
        file.data[start:end].tobytes()
        for key, (start, end) in header.key_spans.items()
        if not key.startswith("split.")
    ]
    infos = [checkpoint.info(name) for name in checkpoint.tensor_names()]
    return source_of_parts(keys, infos, header.alignment, checkpoint.tensor, checkpoint.release)


def source_of_parts(
    keys: Sequence[bytes],
    infos: Sequence[TensorInfo],
    alignment: int,
    read: Callable[[str], QTensor],
    release: Callable[[str], None],
) -> PackSource:
    """A GGUF file that doesn't exist: encoded key-values, and tensors in order."""
    header = np.frombuffer(encode_header(keys, infos, alignment), np.uint8)
    return PackSource(header, tuple(infos), read, release)


def write_packed(
    path: Path,
    source: PackSource,
    roles: Mapping[str, Role],
    num_threads: int = 0,
    check: Callable[[Path], None] | None = None,
) -> PackResult:
    """Write a packed file; it appears under its name only when it is complete.

    Args:
        roles: by tensor name.
        num_threads: 0 for all physical cores.
        check: is given the whole file while it still has another name, and raises if it must not
            replace what `path` holds.

    Raises:
        ModelFileError: a tensor can't be encoded.
        CuletError: the file can't be written.
    """
    about = len(source.header) + sum(info.num_bytes for info in source.tensors)
    try:
        with replacing(path, about) as file, ThreadPoolExecutor(1) as worker:
            result = _PackWriter(file, worker, path, source, num_threads).write(roles)
            file.flush()
            if check is not None:
                check(Path(file.name))
            return result
    except OSError as error:
        raise CuletError(f"{path}: can't be written ({error.strerror})") from error


class _PackWriter:
    """The state of one `write_packed` call.

    Hashing and writing happen in one other thread, in order, while the next slice is encoded.
    """

    def __init__(
        self,
        file: BinaryIO,
        worker: ThreadPoolExecutor,
        path: Path,
        source: PackSource,
        num_threads: int,
    ) -> None:
        self.file = file
        self.worker = worker
        self.path = path
        self.source = source
        self.packer = tiles.Packer(num_threads)
        self.position = 0
        self.pending: deque[Future[None]] = deque()
        self.entries: dict[str, dict[str, Any]] = {}
        self.raw: list[str] = []
        self.whole = _WholeFile(source.file, len(source.header))

    def write(self, roles: Mapping[str, Role]) -> PackResult:
        self._put(np.zeros(PRELUDE.size, np.uint8), hashlib.sha256())
        self.position = HEADER_OFFSET
        header = self._span_of([self.source.header])
        for info in self.source.tensors:
            self._write_tensor(info, roles[info.name])
        served_bytes = self.position
        self._align(GROUP_ALIGNMENT)
        for name in self.raw:
            self.entries[name]["raw"] = self._span_of(self._row_slices(name))
        self._wait(0)
        header_of = parse_header(FilePart(self.path, self.source.header), data_required=False)
        source_sha256 = self.whole.digest()
        index = {
            "planes_version": tiles.PLANES_VERSION,
            "served_bytes": served_bytes,
            "header": header,
            "source": {
                "bytes": _source_bytes(self.source, header_of),
                "sha256": source_sha256,
            },
            "tensors": self.entries,
        }
        index_offset = self.position
        raw = json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode()
        self.file.write(raw)
        # The prelude comes last: until then the file is nothing.
        self.file.seek(0)
        digest = hashlib.sha256(raw).digest()
        self.file.write(PRELUDE.pack(MAGIC, VERSION, 0, index_offset, len(raw), digest))
        file_bytes = index_offset + len(raw)
        raw_bytes = sum(e["raw"]["bytes"] for e in self.entries.values() if "raw" in e)
        return PackResult(file_bytes, served_bytes, raw_bytes, source_sha256 is not None)

    def _write_tensor(self, info: TensorInfo, role: Role) -> None:
        entry: dict[str, Any] = {}
        self.entries[info.name] = entry
        hasher = hashlib.sha256()
        if role == "planes":
            entry |= self._write_planes(info, hasher)
        elif role == "rows":
            # A large table begins a group of its own, so that its pages hold nothing else.
            self._align(GROUP_ALIGNMENT if info.num_bytes >= GROUP_ALIGNMENT else ALIGNMENT)
            entry["served"] = self._span_of(self._row_slices(info.name, hasher))
            if info.num_bytes >= GROUP_ALIGNMENT:
                self._align(GROUP_ALIGNMENT)
        else:
            for _ in self._row_slices(info.name, hasher):
                pass  # only hashed now
            self.raw.append(info.name)
        self._wait(0)
        entry["source_sha256"] = hasher.hexdigest()

    def _write_planes(self, info: TensorInfo, hasher: Any) -> dict[str, Any]:
        tensor = self.source.read(info.name)
        try:
            layout = tiles.layout_of(self.packer, tensor)
        except ValueError as error:
            raise ModelFileError(f"{self.path}: tensor {info.name}: {error}") from error
        self._align(ALIGNMENT)
        gives_back = True

        def slices() -> Iterator[NDArray[np.uint8]]:
            nonlocal gives_back
            for rows, found in tiles.encode(self.packer, tensor, layout):
                if gives_back:
                    in_planes = QTensor(
                        info.name, rows.qtype, rows.shape, rows.data[:0], tiles=found
                    )
                    restored = tiles.restore(self.packer, in_planes)
                    gives_back = restored is not None and np.array_equal(restored, rows.data)
                self._hash_source(rows.data, hasher)
                yield found.data
                self.source.release(info.name)

        span = self._span_of(slices())
        if not gives_back:
            self.raw.append(info.name)
        return {"served": span, "layout": layout, "version": tiles.PLANES_VERSION}

    def _row_slices(self, name: str, hasher: Any = None) -> Iterator[NDArray[np.uint8]]:
        """A tensor's rows as bytes, piece by piece; hashed as source bytes if a hasher is given."""
        data = self.source.read(name).data.reshape(-1)
        for begin in range(0, len(data), _SLICE_BYTES):
            piece = data[begin : begin + _SLICE_BYTES]
            if hasher is not None:
                self._hash_source(piece, hasher)
            yield piece
            self._wait(0)
            self.source.release(name)

    def _hash_source(self, data: NDArray[np.uint8], hasher: Any) -> None:
        def work() -> None:
            hasher.update(data.data)
            self.whole.update(data)

        self._submit(work)

    def _span_of(self, pieces: Any) -> dict[str, Any]:
        """Write pieces one after the other; their place and hash."""
        offset, hasher = self.position, hashlib.sha256()
        for piece in pieces:
            self._put(piece, hasher)
        self._wait(0)
        return {
            "offset": offset,
            "bytes": self.position - offset,
            "sha256": hasher.hexdigest(),
        }

    def _put(self, data: NDArray[np.uint8], hasher: Any) -> None:
        def work() -> None:
            hasher.update(data.data)
            self.file.write(data.data)

        self._submit(work)
        self.position += data.nbytes

    def _align(self, alignment: int) -> None:
        padding = -self.position % alignment
        if padding:
            self._put(np.zeros(padding, np.uint8), hashlib.sha256())

    def _submit(self, work: Callable[[], None]) -> None:
        self.pending.append(self.worker.submit(work))
        self._wait(_MAX_PENDING)

    def _wait(self, most_pending: int) -> None:
        while len(self.pending) > most_pending:
            self.pending.popleft().result()


class _WholeFile:
    """The hash of a source file: its header, its tensors' bytes in order, and what lies between."""

    def __init__(self, data: NDArray[np.uint8] | None, header_bytes: int) -> None:
        self.data = data
        self.hasher = hashlib.sha256()
        self.position = header_bytes
        self.is_canonical = data is not None
        if data is not None:
            self.hasher.update(data[:header_bytes].data)

    def update(self, rows: NDArray[np.uint8]) -> None:
        """The next bytes of a tensor; they are a view of the file."""
        if self.data is None:
            return
        start = rows.ctypes.data - self.data.ctypes.data
        self._gap(start)
        self.hasher.update(rows.data)
        self.position = start + rows.nbytes

    def digest(self) -> str | None:
        """None without a file, or where it holds more than header, tensors and zeros."""
        if self.data is None:
            return None
        self._gap(len(self.data))
        return self.hasher.hexdigest() if self.is_canonical else None

    def _gap(self, end: int) -> None:
        assert self.data is not None
        gap = self.data[self.position : end]
        self.hasher.update(gap.data)
        self.is_canonical = self.is_canonical and not gap.any()
        self.position = end


def _source_bytes(source: PackSource, header: Header) -> int:
    """Length of the source file; of one that doesn't exist, weights padded as llama.cpp does."""
    if source.file is not None:
        return len(source.file)
    end = max((t.start + t.info.num_bytes for t in header.tensors), default=header.num_bytes)
    return -(-end // header.alignment) * header.alignment


def unpack(checkpoint: PackedCheckpoint, path: Path, num_threads: int = 0) -> None:
    """Write the GGUF file that a packed file was made from; every tensor is checked by its hash.

    Raises:
        ModelFileError: the packed file is damaged: a hash is not what it was.
        CuletError: the file can't be written.
    """
    packer = tiles.Packer(num_threads)
    whole = hashlib.sha256()
    position = 0

    try:
        with replacing(path, checkpoint.source_bytes) as file:

            def put(data: Any) -> None:
                nonlocal position
                file.write(data)
                whole.update(data)
                position += len(data)

            put(checkpoint.header_bytes.tobytes())
            for located in sorted(checkpoint.header.tensors, key=lambda t: t.start):
                _put_zeros(put, located.start - position)
                _put_tensor(put, checkpoint, located.info, packer)
            _put_zeros(put, checkpoint.source_bytes - position)
            expected = checkpoint.source_sha256
            if expected is not None and whole.hexdigest() != expected:
                raise ModelFileError(f"{checkpoint.path}: doesn't give back its source")
    except OSError as error:
        raise CuletError(f"{path}: can't be written ({error.strerror})") from error


def _put_tensor(
    put: Callable[[Any], None], checkpoint: PackedCheckpoint, info: TensorInfo, packer: tiles.Packer
) -> None:
    entry: Entry = checkpoint.entries[info.name]
    hasher = hashlib.sha256()
    for piece in _source_rows(checkpoint, entry, info, packer):
        data = piece.reshape(-1)
        for begin in range(0, len(data), _SLICE_BYTES):
            part = data[begin : begin + _SLICE_BYTES].data
            hasher.update(part)
            put(part)
        checkpoint.release(info.name)
    if hasher.hexdigest() != entry.source_sha256:
        raise ModelFileError(f"{checkpoint.path}: tensor {info.name} is damaged (its hash differs)")


def _source_rows(
    checkpoint: PackedCheckpoint, entry: Entry, info: TensorInfo, packer: tiles.Packer
) -> Iterator[NDArray[np.uint8]]:
    """The stored rows of a tensor, in order, in pieces."""
    if entry.raw is not None:
        yield checkpoint.raw_rows(info.name)
        return
    tensor = checkpoint.tensor(info.name)
    if tensor.tiles is None:
        yield tensor.data
        return
    for index in range(tiles.num_matrices(info.shape)):
        one = tiles.matrix(tensor, index) if len(info.shape) == 3 else tensor
        step = max(1, _SLICE_BYTES // one.qtype.row_bytes(one.row_values) // 16) * 16
        for begin in range(0, one.num_rows, step):
            cut = tiles.row_part(one, begin, min(begin + step, one.num_rows))
            restored = tiles.restore(packer, cut)
            if restored is None:
                raise ModelFileError(
                    f"{checkpoint.path}: tensor {info.name} has neither raw rows nor planes that "
                    "give them back"
                )
            yield restored


def _put_zeros(put: Callable[[Any], None], count: int) -> None:
    """Padding; `count` may be large in a file with holes."""
    while count > 0:
        step = min(count, _SLICE_BYTES)
        put(bytes(step))
        count -= step
