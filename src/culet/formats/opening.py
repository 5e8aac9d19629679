"""Finds out what lies at a path and opens it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from culet.errors import ModelFileError, UsageError
from culet.formats.checkpoint import Checkpoint
from culet.formats.gguf import open_gguf
from culet.formats.gguf_header import MAGIC
from culet.formats.mapped import MappedFile
from culet.formats.packed import MAGIC as PACKED_MAGIC
from culet.formats.packed import SUFFIX as PACKED_SUFFIX
from culet.formats.packed import LoadMode, open_packed
from culet.formats.safetensors import CONFIG_NAME, open_safetensors
from culet.formats.shards import listed, shards_of

_FOREIGN_MAGICS = (
    (b"PK\x03\x04", "a zip archive (a PyTorch or Keras checkpoint?)"),
    (b"\x80\x02", "a Python pickle (a PyTorch checkpoint?)"),
    (b"ggml", "a GGML file from before GGUF"),
    (b"fmgg", "a GGML file from before GGUF"),
    (b"tjgg", "a GGML file from before GGUF"),
    (b"<!DO", "an HTML page (a failed download?)"),
    (b"<htm", "an HTML page (a failed download?)"),
    (b"<HTM", "an HTML page (a failed download?)"),
    (b"<!do", "an HTML page (a failed download?)"),
)


def open_checkpoint(
    path: str | Path, *, header_only: bool = False, load_mode: LoadMode = "mmap"
) -> Checkpoint:
    """Open a model: a GGUF file (any shard, any file name), a safetensors folder or file, or a
    packed file.

    A folder may also hold one GGUF model, projectors beside it left alone.

    Args:
        header_only: accept files whose weights are cut off; reading a tensor then raises.
        load_mode: of a packed file, see `open_packed`.

    Raises:
        UsageError: nothing can be read at `path`.
        ModelFileError: it is damaged, incomplete, or in no format that culet reads.
        UnsupportedModelError: it is sound, but not a text model that culet serves.
    """
    path = Path(path)
    with contextlib.suppress(RuntimeError):  # there is no such user, or no home
        path = path.expanduser()
    if path.is_dir():
        return _open_folder(path, header_only)
    if path.suffix == ".safetensors":
        MappedFile(path).close()  # a missing file or a pointer comes before a missing config.json
        return open_safetensors(path, header_only=header_only)
    file = MappedFile(path)
    start = file.data[:8].tobytes()
    file.close()
    if path.suffix == PACKED_SUFFIX or start == PACKED_MAGIC:
        return open_packed(path, load_mode=load_mode)
    for magic, what in _FOREIGN_MAGICS:
        if start.startswith(magic):
            raise ModelFileError(f"{path}: this is {what}; GGUF and safetensors are read")
    if path.suffix == ".gguf" or start[:4] in (MAGIC, MAGIC[::-1]):
        return open_gguf(path, header_only=header_only)
    if path.suffix == ".json":
        raise ModelFileError(f"{path}: this is a part of a model; give the folder {path.parent}")
    raise ModelFileError(
        f"{path}: begins with {start[:4]!r}, neither a GGUF nor a .safetensors file"
    )


def _open_folder(folder: Path, header_only: bool) -> Checkpoint:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: can't be read ({error.strerror})") from error
    if not names:
        raise ModelFileError(f"{folder}: the folder is empty")
    if any(name.endswith(".safetensors") or name == CONFIG_NAME for name in names):
        return open_safetensors(folder, header_only=header_only)
    ggufs = [name for name in names if name.endswith(".gguf") and not name.startswith("mmproj")]
    if not ggufs:
        raise ModelFileError(
            f"{folder}: holds no model, neither .safetensors files with {CONFIG_NAME} nor a .gguf"
        )
    first_files = sorted({shards_of(name)[0] for name in ggufs})
    if len(first_files) > 1:
        raise ModelFileError(
            f"{folder}: holds several models ({listed(first_files)}); name the file"
        )
    return open_gguf(folder / ggufs[0], header_only=header_only)
