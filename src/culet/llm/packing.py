"""Packing a model: which tensors serving multiplies with, looks up, or leaves alone."""

from __future__ import annotations

from pathlib import Path

from culet.errors import ModelFileError, UnsupportedModelError, UsageError
from culet.formats.checkpoint import Checkpoint
from culet.formats.gguf import GgufCheckpoint
from culet.formats.names import gguf_name
from culet.formats.opening import open_checkpoint
from culet.formats.packed import SUFFIX, PackedCheckpoint, open_packed
from culet.formats.packing import PackResult, PackSource, Role, unpack, write_packed
from culet.llm.conversion import Conversion, source_of
from culet.llm.loading import bind_checkpoint
from culet.models.config import ModelConfig
from culet.models.config_to_gguf import same_as_stored
from culet.models.registry import read_config


def pack_model(
    path: Path, out: Path, num_threads: int = 0, conversion: Conversion | None = None
) -> PackResult:
    """Write the packed file of a model.

    Args:
        conversion: what matrices are quantised to; by default everything stays as it is.

    Raises:
        UsageError: it is packed already, or `out` has another suffix.
        ModelFileError, UnsupportedModelError: it would not be served.
        CuletError: the file can't be written.
    """
    if out.suffix != SUFFIX:
        raise UsageError(f"{out}: a packed file's name ends in {SUFFIX}")
    _require_another_file(path, out)
    checkpoint = open_checkpoint(path)
    before = _states(checkpoint)
    try:
        if isinstance(checkpoint, PackedCheckpoint):
            raise UsageError(f"{path}: is packed already")
        config = read_config(checkpoint)
        source = source_of(checkpoint, config, conversion or Conversion(), out.parent)

        def check(written: Path) -> None:
            if _states(checkpoint) != before:
                raise ModelFileError(f"{path}: has been changed while it was packed")
            _check_config(written, config, path)

        return write_packed(out, source, _roles(config, checkpoint, source), num_threads, check)
    finally:
        checkpoint.close()


def _require_another_file(path: Path, out: Path) -> None:
    if out.exists() and path.exists() and out.samefile(path):
        raise UsageError(f"{out}: is the file that is read; name another one to write")


def _states(checkpoint: Checkpoint) -> list[tuple[int, int] | None]:
    """Sizes and times of a model's files; None for one that is gone."""
    path = checkpoint.path
    if isinstance(checkpoint, GgufCheckpoint):
        files = [file.path for file, _ in checkpoint.shards]
    else:
        files = sorted(path.glob("*.[sj]*")) if path.is_dir() else [path]

    def state(file: Path) -> tuple[int, int] | None:
        try:
            status = file.stat()
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns

    return [state(file) for file in files]


def _check_config(written: Path, config: ModelConfig, path: Path) -> None:
    """A folder's config is told in GGUF's keys: make sure that they say the same."""
    packed = open_packed(written)
    try:
        is_same = same_as_stored(read_config(packed), config)
    finally:
        packed.close()
    if not is_same:
        raise UnsupportedModelError(f"{path}: GGUF's metadata can't say all that config.json says")


def unpack_model(path: Path, out: Path, num_threads: int = 0) -> None:
    """Write the GGUF file that a packed file was made from.

    Raises:
        UsageError: `path` is no packed file, or `out` has the name of one.
        ModelFileError: it is damaged.
        CuletError: the file can't be written.
    """
    if out.suffix == SUFFIX:
        raise UsageError(f"{out}: what is unpacked is a GGUF file, {SUFFIX} is for packed ones")
    checkpoint = open_checkpoint(path)
    try:
        if not isinstance(checkpoint, PackedCheckpoint):
            raise UsageError(f"{path}: is no packed file")
        unpack(checkpoint, out, num_threads)
    finally:
        checkpoint.close()


def _roles(config: ModelConfig, checkpoint: Checkpoint, source: PackSource) -> dict[str, Role]:
    """Roles of the tensors that are written; a converted model has only tensors in use."""
    if source.file is not None or checkpoint.kind == "gguf":
        known = roles_of(checkpoint)
        if all(info.name in known for info in source.tensors):
            return {info.name: known[info.name] for info in source.tensors}
    tables = gguf_name("per_layer_token_embd")
    return {
        info.name: "planes" if len(info.shape) >= 2 and info.name != tables else "rows"
        for info in source.tensors
    }


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
