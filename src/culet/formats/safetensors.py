"""Opens a folder of safetensors files with its config.json as a `Checkpoint`.

Sharded or not, with or without an index. Weights stay in the mapped files as they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from culet.errors import ModelFileError, UnsupportedModelError, UsageError
from culet.formats.checkpoint import TensorInfo, folder_of
from culet.formats.identify import hf_adapter, hf_architecture
from culet.formats.mapped import MappedFile
from culet.formats.safetensors_header import Entry, parse_header, parse_json_object
from culet.formats.shards import listed, require_files, shards_of
from culet.quant.tensor import QTensor
from culet.quant.types import BY_NAME

CONFIG_NAME = "config.json"
SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_JSON_BYTES = 4 << 20  # of config.json and of the index
# Weights in these types mean something only together with scales of some scheme.
_SCHEME_DTYPES = ("U8", "F4", "F6_E2M3", "F6_E3M2")


class SafetensorsCheckpoint:
    """A safetensors model; see `culet.formats.checkpoint.Checkpoint`."""

    kind: Literal["gguf", "safetensors"] = "safetensors"

    def __init__(
        self,
        path: Path,
        architecture: str,
        metadata: Mapping[str, Any],
        files: list[MappedFile],
        *,
        header_only: bool,
    ) -> None:
        """Use `open_safetensors`."""
        self.path = path
        self.architecture = architecture
        self.metadata = metadata
        self.file_bytes = sum(file.size for file in files)
        self._files = files
        self._is_closed = False
        self._tensors: dict[str, tuple[MappedFile, Entry]] = {}
        for file in files:
            for entry in parse_header(file, data_required=not header_only):
                if entry.name in self._tensors:
                    other = self._tensors[entry.name][0].path.name
                    raise ModelFileError(f"{file.path}: tensor {entry.name} is in {other} too")
                self._tensors[entry.name] = (file, entry)
        self._refuse_schemes()

    def tensor_names(self) -> list[str]:
        return list(self._tensors)

    def info(self, name: str) -> TensorInfo:
        file, entry = self._find(name)
        qtype = BY_NAME.get(entry.dtype)
        if qtype is None:
            raise UnsupportedModelError(
                f"{file.path}: tensor {name} is {entry.dtype}, which is no type of weights"
            )
        return TensorInfo(name, qtype, entry.shape or (1,), entry.end - entry.start)

    def has_data(self, name: str) -> bool:
        file, entry = self._find(name)
        return not self._is_closed and entry.end <= file.size

    def tensor(self, name: str) -> QTensor:
        info = self.info(name)
        file, entry = self._find(name)
        if not self.has_data(name):
            raise UsageError(f"{self.path}: tensor {name} can't be read, the file is cut or closed")
        data = file.data[entry.start : entry.end]
        row_bytes = info.qtype.row_bytes(info.shape[-1])
        num_rows = info.num_bytes // row_bytes if row_bytes else 0
        return QTensor(name, info.qtype, info.shape, data.reshape(num_rows, row_bytes))

    def release(self, name: str) -> None:
        file, entry = self._find(name)
        file.release(entry.start, entry.end)

    def expect_random_access(self, name: str) -> None:
        file, entry = self._find(name)
        file.expect_random_access(entry.start, entry.end)

    def lock(self, name: str) -> int:
        file, entry = self._find(name)
        file.lock(entry.start, entry.end)
        return entry.end - entry.start

    def check_unchanged(self) -> None:
        for file in self._files:
            file.check_unchanged()

    def close(self) -> None:
        self._is_closed = True
        for file in self._files:
            file.close()

    def holds(self, name: str, file_name: str) -> bool:
        """Whether the tensor lies in the file of that name."""
        found = self._tensors.get(name)
        return found is not None and found[0].path.name == file_name

    def _find(self, name: str) -> tuple[MappedFile, Entry]:
        found = self._tensors.get(name)
        if found is None:
            raise ModelFileError(f"{self.path}: tensor {name} is missing")
        return found

    def _refuse_schemes(self) -> None:
        """Refuse weights whose values mean something only under a quantisation scheme."""
        for name, (file, entry) in self._tensors.items():
            if entry.dtype == "U32" and self._has_mlx_scales(name):
                raise UnsupportedModelError(
                    f"{self.path}: the folder is MLX-quantised (tensor {name} is packed U32 with "
                    f".scales), which isn't served; take the original or a GGUF"
                )
            if entry.dtype == "I8" or name.endswith(".SCB"):
                raise UnsupportedModelError(
                    f"{file.path}: int8 weights without a known scheme (tensor {name})"
                )
            if entry.dtype in _SCHEME_DTYPES or entry.dtype.startswith("F8_"):
                raise UnsupportedModelError(
                    f"{file.path}: {entry.dtype} weights without a known scheme (tensor {name})"
                )

    def _has_mlx_scales(self, name: str) -> bool:
        return f"{name.removesuffix('.weight')}.scales" in self._tensors


def open_safetensors(path: Path, *, header_only: bool = False) -> SafetensorsCheckpoint:
    """Open a folder, or a file with config.json beside it; for a shard, all shards.

    Args:
        header_only: accept files whose weights are cut off; `tensor` then raises.

    Raises:
        UsageError: the path doesn't exist.
        ModelFileError: no config.json or no weights, missing shards, damaged files.
        UnsupportedModelError: as `hf_architecture` does, or weights in a quantised scheme.
    """
    folder = folder_of(path)
    config_path = folder / CONFIG_NAME
    if not config_path.is_file():
        if (folder / "adapter_config.json").is_file():
            raise hf_adapter(str(folder))
        raise ModelFileError(f"{folder}: there is no {CONFIG_NAME} beside the weights")
    config = _read_json(config_path)
    architecture = hf_architecture(config, str(config_path))  # refuses before weights are opened
    if path.is_dir():
        weight_map, names = _files_of_folder(folder)
    else:
        weight_map, names = {}, shards_of(path.name)
    require_files(folder, names, folder)
    files = [MappedFile(folder / name) for name in names]
    checkpoint = SafetensorsCheckpoint(
        path, architecture, text_config(config), files, header_only=header_only
    )
    misplaced = [t for t, file_name in weight_map.items() if not checkpoint.holds(t, file_name)]
    if misplaced:
        raise ModelFileError(
            f"{folder / INDEX_NAME}: these tensors aren't in the files that it names: "
            f"{listed(misplaced)}"
        )
    return checkpoint


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's part of a config.json, with what the whole says for all parts.

    What both say, the text part decides; but whether the head is tied, the whole does (that is
    where transformers looks).
    """
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return dict(config)
    merged = {k: v for k, v in config.items() if not k.endswith("_config")} | dict(text)
    if "tie_word_embeddings" in config:
        merged["tie_word_embeddings"] = config["tie_word_embeddings"]
    return merged


def _files_of_folder(folder: Path) -> tuple[dict[str, str], list[str]]:
    """The index's map from tensors to files (empty without one), and all weight files' names."""
    if (folder / SINGLE_NAME).is_file():
        return {}, [SINGLE_NAME]
    if (folder / INDEX_NAME).is_file():
        weight_map = _weight_map(folder / INDEX_NAME)
        return weight_map, sorted(set(weight_map.values()))
    found = sorted(p.name for p in folder.glob("*.safetensors") if not p.name.startswith("adapter"))
    if not found:
        raise ModelFileError(f"{folder}: there are no .safetensors files beside {CONFIG_NAME}")
    shard_sets = {tuple(shards_of(name)) for name in found}
    if len(shard_sets) > 1:
        raise ModelFileError(
            f"{folder}: holds several models ({listed([s[0] for s in sorted(shard_sets)])}); "
            f"name the file"
        )
    return {}, list(shard_sets.pop())


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = _read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{path}: weight_map is missing or empty")
    for tensor, name in weight_map.items():
        # A name with a path in it could point anywhere on the machine.
        plain = isinstance(name, str) and Path(name).name == name
        if not plain or not name.endswith(".safetensors"):
            raise ModelFileError(
                f"{path}: tensor {tensor} lies in {name!r}, must be a .safetensors "
                f"file of the same folder"
            )
    return weight_map


def _read_json(path: Path) -> dict[str, Any]:
    file = MappedFile(path)
    if file.size > MAX_JSON_BYTES:
        raise ModelFileError(f"{path}: has {file.size} bytes, at most {MAX_JSON_BYTES} are read")
    return parse_json_object(file.data.tobytes(), str(path))
