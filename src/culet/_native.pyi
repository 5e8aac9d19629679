"""The native module's signatures, one section for each csrc/bind_*.cpp."""

from collections.abc import Iterator

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
def plane_forms() -> list[tuple[int | str | tuple[int, ...], ...]]: ...
def iq_grid(name: str) -> bytes: ...
