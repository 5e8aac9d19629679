"""Choosing a backend by name."""

from __future__ import annotations

import sys

import pytest

from culet.errors import BackendError, UsageError
from culet.ops.select import load_ops


def test_reference_is_always_there() -> None:
    assert load_ops("reference").name == "reference"
    assert load_ops("reference", precision="fast").precision == "exact"


def test_auto_is_the_cpu() -> None:
    assert load_ops("auto").name == load_ops("cpu").name == "cpu"
    assert load_ops("cpu", precision="exact").precision == "exact"


def test_what_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="'abacus'.*auto, cpu, gpu, reference"):
        load_ops("abacus")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'some'.*fast, exact"):
        load_ops("cpu", precision="some")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="threads is 0"):
        load_ops("cpu", threads=0)
    with pytest.raises(BackendError, match="gpu"):
        load_ops("gpu")


def test_a_backend_that_is_not_built_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "culet.ops.cpu.backend", None)
    with pytest.raises(BackendError, match="cpu is not built"):
        load_ops("cpu")
