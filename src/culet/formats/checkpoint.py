"""What a model file offers to the rest of culet, whatever its format. `opening` makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from culet.quant.tensor import QTensor
from culet.quant.types import QuantType


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a file says of a tensor before its bytes are touched.

    Attributes:
        shape: torch order, rows first.
        num_bytes: as stored.
    """

    name: str
    qtype: QuantType
    shape: tuple[int, ...]
    num_bytes: int


def folder_of(path: Path) -> Path:
    """The folder of a model: what lies beside its weights (tokenizer.json, ...) lies there."""
    return path if path.is_dir() else path.parent


class Checkpoint(Protocol):
    """An opened model: metadata and lazily mapped tensors, by their names in the file.

    Attributes:
        path: the file or folder that was opened.
        kind: which naming and metadata conventions hold.
        architecture: `gemma4`, `gemma3`, ... in GGUF's spelling, towers' wrappers removed.
        metadata: GGUF key-values (string arrays stay in the file, see `StringTable`), or for a
            safetensors folder the text part of config.json with torch-style keys.
        file_bytes: total size of all files.
    """

    path: Path
    kind: Literal["gguf", "safetensors"]
    architecture: str
    metadata: Mapping[str, Any]
    file_bytes: int

    def tensor_names(self) -> list[str]:
        """Names of all tensors, in file order."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Type, shape and size of the tensor of that name; errors as with `tensor`."""
        ...

    def has_data(self, name: str) -> bool:
        """Whether the bytes of the tensor are there; a file opened for its header may be cut."""
        ...

    def tensor(self, name: str) -> QTensor:
        """The tensor of that name; `ModelFileError` naming file and tensor if absent."""
        ...

    def release(self, name: str) -> None:
        """Tell the system that the tensor's pages won't be read again soon (after re-encoding)."""
        ...

    def expect_random_access(self, name: str) -> None:
        """Tell the system that the tensor's rows will be read here and there."""
        ...

    def lock(self, name: str) -> int:
        """Keep what is mapped of the tensor in RAM; its bytes. `OSError` if that isn't allowed."""
        ...

    def check_unchanged(self) -> None:
        """`ModelFileError` if a file was written to since it was opened; takes microseconds."""
        ...

    def close(self) -> None: ...
