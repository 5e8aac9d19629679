"""The ops interface over the native kernels: numpy arrays in and out.

The ops themselves are methods of the native `Recorder`; here are storage and the choice of threads
and ISA level. Knows tensors and their types, no model.
"""

from __future__ import annotations

import os
from mmap import mmap
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from culet._native import KvLayer, Recorder, Table, Weight
from culet.errors import BackendError, CapacityError, ModelFileError, UsageError
from culet.ops.cpu.buffers import Buffers
from culet.ops.interface import KvType, Placement, Precision
from culet.quant.tensor import QTensor

# In the order of the native enum.
_KV_TYPES: tuple[KvType, ...] = ("f16", "bf16", "f32", "q8_0")
assert set(_KV_TYPES) == set(get_args(KvType))
_Q8_GROUP = 32


class CpuOps(Recorder):
    """`culet.ops.interface.Ops` on the CPU.

    The environment variable CULET_ISA names the level of instructions to use, one of
    `culet._native.isa_levels()`; without it the best that the CPU has is used.

    Args:
        threads: threads that compute, the caller's included; None for the physical cores that
            this process may use.
        precision: `fast` multiplies quantised weights with int8 activations (one float32 scale
            per 32 values), `exact` everything in float32.

    Raises:
        BackendError: CULET_ISA names a level that does not exist or that this CPU lacks, or the
            system does not allow so many threads.
    """

    name = "cpu"

    def __init__(self, threads: int | None = None, precision: Precision = "fast") -> None:
        if threads is not None and threads < 1:
            raise UsageError(f"threads is {threads}; at least 1 is needed")
        try:
            super().__init__(threads or 0, precision == "exact", os.environ.get("CULET_ISA"))
        except ValueError as error:
            raise BackendError(f"CULET_ISA: {error}") from error
        self.precision: Precision = precision
        self._buffers = Buffers()
        self._start_threads()

    def _start_threads(self) -> None:
        """Any op makes the pool start its threads: where the system refuses, that is said now."""
        cell = self.empty(1, 1)
        self.gather_rows(self.empty(1, 1), cell, np.zeros(1, np.int32))
        try:
            self.sync()
        except RuntimeError as error:
            raise BackendError(
                f"the system doesn't let this process start {self.num_threads} threads ({error}); "
                "ask for fewer with --threads, or raise its limits (ulimit -u, ulimit -v)"
            ) from error

    @property
    def description(self) -> str:
        """See `Ops`."""
        return f"{self.isa}, {self.num_threads} threads"

    def empty(self, *shape: int) -> NDArray[np.float32]:
        """See `Ops.empty`."""
        return self._buffers.empty(shape)

    def constant(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `Ops.constant`."""
        return np.array(values, dtype=np.float32, order="C")

    def numpy(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `Ops.numpy`."""
        return array

    def weight(self, source: QTensor) -> Weight:
        """See `Ops.weight`: the matrix in tiled planes, in private memory unless it has them.

        Raises:
            ModelFileError: an F64 tensor with values that float32 can't hold.
            CapacityError: there is no memory for the planes.
        """
        try:
            if source.tiles is not None:
                return self.mapped_weight(
                    source.tiles.layout,
                    source.qtype.ggml_id,
                    source.num_rows,
                    source.row_values,
                    source.tiles.data,
                    _factor(source),
                    source.tiles.owned,
                )
            return self.encode_weight(
                source.qtype.ggml_id,
                source.num_rows,
                source.row_values,
                _rows(source),
                _factor(source),
            )
        except ValueError as error:
            raise ModelFileError(f"tensor {source.name}: {error}") from error
        except MemoryError as error:
            raise CapacityError(
                f"tensor {source.name}: no memory for about {source.num_bytes} bytes"
            ) from error

    def table(self, source: QTensor, placement: Placement) -> Table:
        """See `Ops.table`; `device` is the host here."""
        return self.stored_table(
            source.qtype.ggml_id,
            source.num_rows,
            source.row_values,
            _rows(source),
            _factor(source),
            placement != "disk",
            _is_mapped(source.data),
        )

    def kv_layer(
        self, num_pages: int, page_tokens: int, num_kv_heads: int, head_dim: int, kv_type: KvType
    ) -> KvLayer:
        """See `Ops.kv_layer`.

        Raises:
            BackendError: q8_0 with a head_dim that is not a multiple of 32.
            CapacityError: there is no memory for the pages.
        """
        if kv_type == "q8_0" and head_dim % _Q8_GROUP:
            raise BackendError(
                f"KV type q8_0 needs heads of a multiple of {_Q8_GROUP} values, "
                f"but this model has heads of {head_dim}"
            )
        kind = _KV_TYPES.index(kv_type)
        try:
            return KvLayer(num_pages, page_tokens, num_kv_heads, head_dim, kind)
        except MemoryError as error:
            raise CapacityError(
                f"no memory for {num_pages} K/V pages of {page_tokens} tokens"
            ) from error


def _is_mapped(data: NDArray[np.uint8]) -> bool:
    """Whether the array is a view of a mapped file."""
    owner: object = data
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return isinstance(owner, mmap)


def _rows(source: QTensor) -> NDArray[np.uint8]:
    return source.data.reshape(source.num_rows, -1)


def _factor(source: QTensor) -> float:
    """The tensor's own factor on its values (NVFP4); stacked experts come one by one."""
    if source.scale is None:
        return 1.0
    if source.scale.size != 1:
        raise ModelFileError(
            f"tensor {source.name}: {source.scale.size} scales for one matrix; 1 is allowed"
        )
    return float(source.scale.reshape(-1)[0])
