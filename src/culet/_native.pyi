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
