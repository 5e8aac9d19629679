"""Packing a model: which tensors serving multiplies with, looks up, or leaves alone."""

from __future__ import annotations

import logging
from pathlib import Path

from culet.errors import UsageError
from culet.formats.checkpoint import Checkpoint
from culet.formats.gguf import GgufCheckpoint
from culet.formats.opening import open_checkpoint
from culet.formats.packed import SUFFIX, PackedCheckpoint
from culet.formats.packing import PackResult, Role, source_of_gguf, unpack, write_packed
from culet.llm.loading import bind_checkpoint
from culet.models.registry import read_config

_log = logging.getLogger("culet")


def pack_model(path: Path, out: Path, num_threads: int = 0) -> PackResult:
    """Write the packed file of a model.

    Raises:
        UsageError: it is packed already, or `out` has another suffix.
        ModelFileError, UnsupportedModelError: it would not be served.
        CuletError: the file can't be written.
    """
    if out.suffix != SUFFIX:
        raise UsageError(f"{out}: a packed file's name ends in {SUFFIX}")
    checkpoint = open_checkpoint(path)
    try:
        if isinstance(checkpoint, PackedCheckpoint):
            raise UsageError(f"{path}: is packed already")
        if not isinstance(checkpoint, GgufCheckpoint):
            raise UsageError(f"{path}: only GGUF files can be packed so far")
        return write_packed(out, source_of_gguf(checkpoint), roles_of(checkpoint), num_threads)
    finally:
        checkpoint.close()


def unpack_model(path: Path, out: Path, num_threads: int = 0) -> None:
    """Write the GGUF file that a packed file was made from.

    Raises:
        UsageError: `path` is no packed file.
        ModelFileError: it is damaged.
        CuletError: the file can't be written.
    """
    checkpoint = open_checkpoint(path)
    try:
        if not isinstance(checkpoint, PackedCheckpoint):
            raise UsageError(f"{path}: is no packed file")
        unpack(checkpoint, out, num_threads)
    finally:
        checkpoint.close()


def roles_of(checkpoint: Checkpoint) -> dict[str, Role]:
    """What serving does with each tensor: matrices become planes, look-up tables and vectors stay
    rows, and what the model has no use for is kept apart."""
    config = read_config(checkpoint)
    binding = bind_checkpoint(config, checkpoint)
    used = {source.name: canonical for canonical, source in binding.sources.items()}
    roles: dict[str, Role] = {}
    for name in checkpoint.tensor_names():
        is_matrix = len(checkpoint.info(name).shape) >= 2
        if name in binding.companions:
            roles[name] = "rows"
        elif name not in used:
            roles[name] = "raw"
        elif is_matrix and used[name] != "per_layer_token_embd":
            roles[name] = "planes"
        else:
            roles[name] = "rows"
    return roles
