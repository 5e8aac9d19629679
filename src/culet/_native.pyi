"""The native module's signatures, one section for each csrc/bind_*.cpp."""

from collections.abc import Iterator, Sequence
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

# bind_cpu.cpp

class Table:
    """Rows that can be looked up; `reads_source` if they are read from the array given."""

    @property
    def num_bytes(self) -> int: ...
    @property
    def reads_source(self) -> bool: ...
    def decode_rows(self, first: int, out: NDArray[np.float32]) -> None: ...

class Weight(Table):
    """A weight matrix in tiled planes."""

class KvLayer:
    """K and V pages of one layer; `kv_type` 0 f16, 1 bf16, 2 f32, 3 q8_0."""

    def __init__(
        self, num_pages: int, page_tokens: int, num_kv_heads: int, head_dim: int, kv_type: int
    ) -> None: ...
    @property
    def num_bytes(self) -> int: ...

class Recorder:
    """Records ops and runs them in `sync`; `culet.ops.interface.Ops` says what each computes.

    Raises ValueError for an ISA level that does not exist or that this CPU lacks, and for shapes
    and indices that do not fit; TypeError for arrays of another kind.
    """

    def __init__(self, num_threads: int, exact: bool, isa: str | None) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    def set_profile(self, on: bool) -> None: ...
    def take_profile(self) -> dict[str, tuple[int, float]]: ...
    def encode_weight(
        self, ggml_id: int, num_rows: int, num_cols: int, data: NDArray[np.uint8], factor: float
    ) -> Weight: ...
    def mapped_weight(
        self,
        layout: str,
        ggml_id: int,
        num_rows: int,
        num_cols: int,
        data: NDArray[np.uint8],
        factor: float,
        owned: bool,
    ) -> Weight: ...
    def stored_table(
        self,
        ggml_id: int,
        num_rows: int,
        num_cols: int,
        data: NDArray[np.uint8],
        factor: float,
        copy: bool,
        mapped: bool,
    ) -> Table: ...
    def sync(self) -> None: ...
    def embed(
        self, out: NDArray[np.float32], table: Table, ids: NDArray[np.int32], scale: float
    ) -> None: ...
    def gather_rows(
        self, out: NDArray[np.float32], x: NDArray[np.float32], rows: NDArray[np.int32]
    ) -> None: ...
    def scatter_rows(
        self, x: NDArray[np.float32], values: NDArray[np.float32], rows: NDArray[np.int32]
    ) -> None: ...
    def rope_table(
        self,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
        positions: NDArray[np.int32],
        inverse_frequencies: NDArray[np.float32],
    ) -> None: ...
    def per_layer_inputs(
        self,
        out: NDArray[np.float32],
        table: Table,
        ids: NDArray[np.int32],
        first_layer: int,
        x: NDArray[np.float32],
        projection: Weight,
        norm: NDArray[np.float32],
        eps: float,
    ) -> None: ...
    def norm_linear(
        self,
        outs: Sequence[NDArray[np.float32]],
        x: NDArray[np.float32],
        norm: NDArray[np.float32] | None,
        eps: float,
        weights: Sequence[Weight],
    ) -> None: ...
    def attention_inputs(
        self,
        q: NDArray[np.float32] | None,
        k: NDArray[np.float32] | None,
        v: NDArray[np.float32] | None,
        q_norm: NDArray[np.float32] | None,
        k_norm: NDArray[np.float32] | None,
        normalize_v: bool,
        eps: float,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
        kv: Any,
        pages: Any,
    ) -> None: ...
    def attention(
        self,
        out: NDArray[np.float32],
        q: NDArray[np.float32],
        kv: Any,
        pages: Any,
        window: int | None,
        scale: float,
    ) -> None: ...
    def copy_page(self, kv: Any, source: int, target: int) -> None: ...
    def linear_norm_add(
        self,
        x: NDArray[np.float32],
        a: NDArray[np.float32],
        weight: Weight,
        norm: NDArray[np.float32] | None,
        eps: float,
    ) -> None: ...
    def gate_up(
        self,
        out: NDArray[np.float32],
        x: NDArray[np.float32],
        norm: NDArray[np.float32],
        eps: float,
        gate: Weight,
        up: Weight,
    ) -> None: ...
    def per_layer_step(
        self,
        x: NDArray[np.float32],
        per_layer: NDArray[np.float32],
        gate: Weight,
        projection: Weight,
        norm: NDArray[np.float32],
        eps: float,
    ) -> None: ...
    def scale(self, x: NDArray[np.float32], factor: float) -> None: ...
    def moe_mlp(
        self,
        x: NDArray[np.float32],
        mlp_norm: NDArray[np.float32],
        gate: Weight,
        up: Weight,
        down: Weight,
        mlp_post_norm: NDArray[np.float32],
        experts: Any,
        experts_norm: NDArray[np.float32],
        experts_post_norm: NDArray[np.float32],
        post_norm: NDArray[np.float32],
        eps: float,
    ) -> None: ...
    def rms_norm(
        self,
        out: NDArray[np.float32],
        x: NDArray[np.float32],
        norm: NDArray[np.float32],
        eps: float,
    ) -> None: ...
    def logits(
        self,
        out: NDArray[np.float32],
        hidden: NDArray[np.float32],
        head: Weight,
        softcap: float | None,
    ) -> None: ...

def isa_levels() -> list[str]: ...
def default_num_threads() -> int: ...

# GB/s of a read-only pass; nanoseconds of an empty parallel loop.
def probe_read(num_threads: int, num_bytes: int) -> float: ...
def probe_fork_join(num_threads: int, num_loops: int) -> float: ...

# bind_planes.cpp

PLANES_VERSION: int

def stored_layout(ggml_id: int) -> str: ...
def planes_bytes(layout: str, ggml_id: int, num_rows: int, num_cols: int) -> int: ...

class Packer:
    """Threads that re-encode between stored rows and tiled planes; 0: all physical cores."""

    def __init__(self, num_threads: int) -> None: ...
    def layout(
        self, ggml_id: int, num_rows: int, num_cols: int, data: NDArray[np.uint8]
    ) -> str: ...
    def encode(
        self,
        layout: str,
        ggml_id: int,
        num_rows: int,
        num_cols: int,
        data: NDArray[np.uint8],
        out: NDArray[np.uint8],
    ) -> None: ...
    def restore(
        self,
        layout: str,
        ggml_id: int,
        num_cols: int,
        tiles: NDArray[np.uint8],
        out: NDArray[np.uint8],
    ) -> bool: ...
    def decode(
        self, layout: str, ggml_id: int, tiles: NDArray[np.uint8], out: NDArray[np.float32]
    ) -> None: ...

# bind_lost_pages.cpp

def explain_lost_pages(exit_code: int) -> None: ...
