"""Handing a checkpoint's tensors to a model: each once, of the shape that the config says.

Knows canonical names (see the names table of `formats`) and shapes; reads no file itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from culet.errors import ModelFileError
from culet.ops.interface import Array, Ops, Placement, Weight
from culet.quant.blocks import decode
from culet.quant.tensor import QTensor
from culet.quant.tiles import matrix, row_part


class WeightLoader:
    """Takes tensors by canonical name and turns them into a backend's weights.

    Args:
        ops: the backend that the weights are for.
        names: all canonical names that the checkpoint offers.
        read: gives the tensor of a canonical name.
        release: is told when a tensor's mapped bytes won't be read again.
        label: the file, for messages.
    """

    def __init__(
        self,
        ops: Ops,
        names: Iterable[str],
        read: Callable[[str], QTensor],
        release: Callable[[str], None],
        label: str,
    ) -> None:
        self.ops = ops
        self._left = set(names)
        self._read = read
        self._release = release
        self._label = label
        self._made: dict[str, list[Weight]] = {}
        self._decoded_bytes: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def tensor(self, name: str, *shape: int) -> QTensor:
        """The tensor as stored, marked as used; `ModelFileError` if absent or of another shape."""
        if name not in self._left:
            raise ModelFileError(f"{self._label}: the model needs {name}, which is not there")
        self._left.remove(name)
        tensor = self._read(name)
        if tensor.shape != shape:
            raise ModelFileError(
                f"{self._label}: tensor {tensor.name} has shape {list(tensor.shape)}; "
                f"the config says {list(shape)}"
            )
        return tensor

    def linear(self, name: str, num_out: int, num_in: int) -> Weight:
        """A matmul weight [num_out, num_in]."""
        weight = self.ops.weight(self.tensor(name, num_out, num_in))
        self.done(name, weight)
        return weight

    def linear_parts(self, name: str, num_out: list[int], num_in: int) -> list[Weight | None]:
        """One weight for each run of rows of a linear, by views; None for a run of no rows."""
        tensor = self.tensor(name, sum(num_out), num_in)
        ends = np.cumsum(num_out).tolist()
        parts = [
            self.ops.weight(row_part(tensor, end - count, end)) if count else None
            for count, end in zip(num_out, ends, strict=True)
        ]
        self.done(name, *parts)
        return parts

    def experts(self, name: str, num_experts: int, num_out: int, num_in: int) -> list[Weight]:
        """One weight [num_out, num_in] for each of the stacked experts."""
        tensor = self.tensor(name, num_experts, num_out, num_in)
        parts = [self.ops.weight(matrix(tensor, index)) for index in range(num_experts)]
        self.done(name, *parts)
        return parts

    def table(self, name: str, num_rows: int, num_values: int, placement: Placement) -> Weight:
        """A look-up table [num_rows, num_values]."""
        weight = self.ops.table(self.tensor(name, num_rows, num_values), placement)
        self.done(name, weight)
        return weight

    def values(self, name: str, *shape: int) -> NDArray[np.float32]:
        """A small tensor, decoded."""
        values = decode(self.tensor(name, *shape)).reshape(shape)
        self._release(name)
        self._decoded_bytes[name] = values.nbytes
        return values

    def vector(self, name: str, size: int) -> Array:
        """A constant [size], such as the weight of a norm."""
        return self.ops.constant(self.values(name, size))

    def done(self, name: str, *weights: Weight | None) -> None:
        """Give the mapped bytes back unless a backend still reads them."""
        kept = [weight for weight in weights if weight is not None]
        self._made[name] = kept
        if not any(weight.reads_source for weight in kept):
            self._release(name)

    def held_bytes(self) -> dict[str, int]:
        """Memory held now by what was made from each canonical name."""
        return self._decoded_bytes | {
            name: sum(weight.num_bytes for weight in weights)
            for name, weights in self._made.items()
        }

    def finish(self) -> None:
        """`ModelFileError` if a tensor was offered that the model has no use for."""
        if self._left:
            first = ", ".join(sorted(self._left)[:3])
            raise ModelFileError(
                f"{self._label}: {len(self._left)} tensors have no use in this model: {first}"
            )
