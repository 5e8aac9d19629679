"""Opens a GGUF model, in one file or split in several, as a `Checkpoint`.

Weights stay in the mapped files. Parsing is in `gguf_header`; knows nothing of what tensors mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from culet.errors import ModelFileError, UsageError
from culet.formats.checkpoint import TensorInfo
from culet.formats.gguf_header import Header, Located, parse_header
from culet.formats.identify import gguf_architecture
from culet.formats.mapped import MappedFile
from culet.formats.shards import require_files, shard_name, shards_of
from culet.quant.tensor import QTensor


class GgufCheckpoint:
    """A GGUF model; see `culet.formats.checkpoint.Checkpoint`.

    Attributes:
        shards: its files in order, each with its parsed header.
    """

    kind: Literal["gguf", "safetensors"] = "gguf"

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        shards: list[tuple[MappedFile, Header]],
    ) -> None:
        """Use `open_gguf`. `shards`: in order, each with its parsed header."""
        self.path = path
        self.architecture = gguf_architecture(metadata, str(path))
        self.metadata = metadata
        self.version = shards[0][1].version
        self.file_bytes = sum(file.size for file, _ in shards)
        self._is_closed = False
        self._tensors: dict[str, tuple[MappedFile, Located]] = {}
        for file, header in shards:
            for located in header.tensors:
                if located.info.name in self._tensors:
                    raise ModelFileError(
                        f"{file.path}: tensor {located.info.name} occurs in another shard too"
                    )
                self._tensors[located.info.name] = (file, located)
        self.shards = shards

    def tensor_names(self) -> list[str]:
        return list(self._tensors)

    def info(self, name: str) -> TensorInfo:
        return self._find(name)[1].info

    def has_data(self, name: str) -> bool:
        file, located = self._find(name)
        return not self._is_closed and located.start + located.info.num_bytes <= file.size

    def tensor(self, name: str) -> QTensor:
        file, located = self._find(name)
        if not self.has_data(name):
            raise UsageError(f"{self.path}: tensor {name} can't be read, the file is cut or closed")
        info = located.info
        data = file.data[located.start : located.start + info.num_bytes]
        row_bytes = info.qtype.row_bytes(info.shape[-1])
        return QTensor(name, info.qtype, info.shape, data.reshape(-1, row_bytes))

    def release(self, name: str) -> None:
        file, located = self._find(name)
        file.release(located.start, located.start + located.info.num_bytes)

    def expect_random_access(self, name: str) -> None:
        file, located = self._find(name)
        file.expect_random_access(located.start, located.start + located.info.num_bytes)

    def lock(self, name: str) -> int:
        file, located = self._find(name)
        file.lock(located.start, located.start + located.info.num_bytes)
        return located.info.num_bytes

    def check_unchanged(self) -> None:
        for file, _ in self.shards:
            file.check_unchanged()

    def close(self) -> None:
        self._is_closed = True
        for file, _ in self.shards:
            file.close()

    def _find(self, name: str) -> tuple[MappedFile, Located]:
        found = self._tensors.get(name)
        if found is None:
            raise ModelFileError(f"{self.path}: tensor {name} is missing")
        return found


def open_gguf(path: Path, *, header_only: bool = False) -> GgufCheckpoint:
    """Open a GGUF file, or all shards of a split one, whichever shard is given.

    Args:
        header_only: accept files whose weights are cut off; see `Checkpoint.has_data`.

    Raises:
        ModelFileError, UnsupportedModelError: as `parse_header` and `gguf_architecture` do, or
            shards are missing or contradict each other.
    """
    file = MappedFile(path)
    header = parse_header(file, data_required=not header_only)
    shard_count = _small_int(header.metadata, "split.count", path, default=1)
    if shard_count <= 1:
        return GgufCheckpoint(path, header.metadata, [(file, header)])
    shards: list[tuple[MappedFile, Header]] = []
    for number, shard_path in enumerate(_shard_paths(path, shard_count)):
        shard = file if shard_path == path else MappedFile(shard_path)
        shard_header = (
            header if shard is file else parse_header(shard, data_required=not header_only)
        )
        _check_shard(shard_header, shard_path, number, shard_count)
        shards.append((shard, shard_header))
    metadata = shards[0][1].metadata
    checkpoint = GgufCheckpoint(path, metadata, shards)
    expected = metadata.get("split.tensors.count")
    if expected is not None and expected != len(checkpoint.tensor_names()):
        raise ModelFileError(
            f"{path}: its {shard_count} shards hold {len(checkpoint.tensor_names())} tensors, "
            f"split.tensors.count is {expected}"
        )
    return checkpoint


def _shard_paths(path: Path, shard_count: int) -> list[Path]:
    """All shards beside `path`, in order; `ModelFileError` names those that are missing."""
    names = shards_of(path.name)
    if len(names) != shard_count or path.name not in names:
        raise ModelFileError(
            f"{path}: one of {shard_count} shards, so its name must be like "
            f"{shard_name('NAME', 1, shard_count, '.gguf')}"
        )
    require_files(path.parent, names, path)
    return [path.with_name(name) for name in names]


def _check_shard(header: Header, path: Path, number: int, shard_count: int) -> None:
    found = (
        _small_int(header.metadata, "split.no", path),
        _small_int(header.metadata, "split.count", path),
    )
    if found != (number, shard_count):
        raise ModelFileError(
            f"{path}: calls itself shard {found[0]} of {found[1]} (counted from 0), "
            f"its name says {number} of {shard_count}"
        )


def _small_int(
    metadata: Mapping[str, Any], key: str, path: Path, default: int | None = None
) -> int:
    value = metadata.get(key, default)
    if type(value) is not int or not 0 <= value < 1 << 16:
        raise ModelFileError(f"{path}: {key} is {value!r}, must be an integer below 65536")
    return value
