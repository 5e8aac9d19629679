"""Tiny models as files, made once per run."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for model files that several tests use."""
    return tmp_path_factory.mktemp("models")
