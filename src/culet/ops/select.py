"""Choosing a backend by name. Knows which exist, not what they do."""

from __future__ import annotations

import importlib
from typing import Literal, cast

from culet.errors import BackendError, UsageError
from culet.ops.interface import Ops, Precision

BackendName = Literal["auto", "cpu", "gpu", "reference"]
BACKENDS: tuple[BackendName, ...] = ("auto", "cpu", "gpu", "reference")


def load_ops(
    backend: BackendName = "auto", *, threads: int | None = None, precision: Precision = "fast"
) -> Ops:
    """The backend of that name; `auto` is `cpu`.

    Args:
        threads: threads that compute; None for the backend's own choice. `reference` ignores it.
        precision: of activations; `reference` is always exact.

    Raises:
        UsageError: no such backend or precision, or fewer than one thread.
        BackendError: the backend is not built or not installed.
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend {backend!r} does not exist; there are {', '.join(BACKENDS)}")
    if precision not in ("fast", "exact"):
        raise UsageError(f"precision {precision!r} does not exist; there are fast, exact")
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}; at least 1 is needed")
    if backend == "gpu":
        raise BackendError("backend gpu is not part of this build of culet; use cpu or reference")
    if backend == "reference":
        # Imported where chosen: a server never needs the other backends' modules.
        from culet.ops.reference import ReferenceOps

        return ReferenceOps()
    try:
        module = importlib.import_module("culet.ops.cpu.backend")
    except ImportError as error:
        raise BackendError(
            f"backend cpu is not built ({error}); reinstall culet with a C++ compiler, "
            "or use backend reference"
        ) from error
    return cast(Ops, module.CpuOps(threads=threads, precision=precision))
