"""Settings that must stand before numpy is imported, and model files that several parts test with.

The models are whole and tiny: random weights, a toy Gemma 4 vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

# The suite's matrices are tiny: BLAS threads only wait for one another, on a busy machine for long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What is large and not made for every Python. Files of tests that import it are skipped without it;
# nothing else of the `test` extra may be missing.
LARGE_ORACLES = {"torch", "transformers"}


class SuiteModule(pytest.Module):
    """A file of tests, skipped as a whole where a large oracle that it imports is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError) and missing.name in LARGE_ORACLES:
                pytest.skip(f"{missing.name} is not installed", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> SuiteModule:
    return SuiteModule.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An E-series model that answers with random words."""
    # Imported here: most tests need no torch, which takes seconds.
    pytest.importorskip("torch")
    from support.tiny_models import save_whole_gguf

    return save_whole_gguf(tmp_path_factory.mktemp("whole") / "whole.gguf")


@pytest.fixture(scope="session")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a tokenizer."""
    pytest.importorskip("torch")
    from support.tiny_models import CONFIGS, make_model, save_gguf

    return save_gguf(make_model(CONFIGS[0]), tmp_path_factory.mktemp("bare") / "bare.gguf")
