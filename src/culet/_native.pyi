"""The native module's signatures, one section for each csrc/bind_*.cpp."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

# bind_string_table.cpp

class StringTable:
    """A read-only sequence of byte strings that stay where they lie."""

    @staticmethod
    def scan(file: NDArray[np.uint8], offset: int, count: int) -> StringTable: ...
    @staticmethod
    def from_list(strings: list[bytes]) -> StringTable: ...
    @property
    def end_offset(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> bytes: ...
    def __iter__(self) -> Iterator[bytes]: ...

# bind_ggml_blocks.cpp

def gather_rows(
    ggml_id: int,
    data: NDArray[np.uint8],
    ids: NDArray[np.int32],
    out: NDArray[np.float32],
    scale: float = 1.0,
) -> None: ...
def canonical_rows(
    ggml_id: int,
    data: NDArray[np.uint8],
    codes: NDArray[np.uint8],
    f16_scales: NDArray[np.uint16] | None,
    f16_mins: NDArray[np.uint16] | None,
    sub_scales: NDArray[np.int8] | None,
    sub_mins: NDArray[np.uint8] | None,
) -> None: ...
def plane_forms() -> list[tuple[Any, ...]]: ...
def iq_grid(name: str) -> bytes: ...

# bind_bpe.cpp

class PieceIndex:
    """Finds pieces of a StringTable by their bytes."""

    def __init__(self, pieces: StringTable) -> None: ...
    def find(self, piece: bytes) -> int: ...

class Bpe:
    """Byte-pair encoding over the tables of a file."""

    @staticmethod
    def ranked(
        index: PieceIndex,
        merges: StringTable,
        control: list[int],
        user_defined: list[int],
        inert: list[int],
        unknown: int,
    ) -> Bpe: ...
    @staticmethod
    def scored(
        index: PieceIndex,
        scores: NDArray[np.float32],
        control: list[int],
        user_defined: list[int],
        inert: list[int],
        unknown: int,
    ) -> Bpe: ...
    def encode(
        self, text: bytes, parse_control: bool, guarded: list[tuple[int, int]]
    ) -> list[int]: ...
