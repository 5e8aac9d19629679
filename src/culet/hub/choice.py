"""Which files of a repository make the model that was asked for. Pure: knows names only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from culet.errors import UsageError
from culet.formats.shards import listed, shards_of

# owner/repo, then maybe a file or the name of a quantisation.
_REFERENCE = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(:(?P<selector>[\w./+-]+))?", re.ASCII
)
# Files that look like models and are not: projectors, draft models, importance matrices.
_COMPANION = re.compile(
    r"(^|[-_.])(mmproj|imatrix|draft|assistant|mtp|dflash|eagle3?)([-_.]|$)", re.IGNORECASE
)
_QUANT = re.compile(
    r"(UD-)?(I?Q\d[A-Z0-9_]*|TQ\d_\d|MXFP4[A-Z0-9_]*|NVFP4|BF16|F16|F32)", re.IGNORECASE
)
# Taken without being asked for: the usual compromise first, then what is near it.
_PREFERRED = ("Q4_K_M", "UD-Q4_K_XL", "Q4_0", "Q5_K_M", "Q8_0")
# What a folder needs beside its weights; config.json comes last, so that it says "complete".
_FOLDER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "config.json",
)
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Reference:
    """A model's name: a repository, and which of its files.

    Attributes:
        selector: a file of the repository or the name of a quantisation; None to choose for me.
    """

    repo: str
    selector: str | None = None

    def __str__(self) -> str:
        return self.repo if self.selector is None else f"{self.repo}:{self.selector}"


def parse_reference(name: str) -> Reference | None:
    """`owner/repo[:file-or-quant]`; None if the name has another form."""
    match = _REFERENCE.fullmatch(name)
    if match is None or ".." in name:
        return None
    return Reference(match["repo"], match["selector"])


def choose_files(reference: Reference, names: Sequence[str]) -> list[str]:
    """The files to fetch, in order: all shards of one GGUF model, or a safetensors folder's.

    Args:
        names: every file of the repository.

    Raises:
        UsageError: no such file or quantisation, several that fit, or no model at all.
    """
    selector = reference.selector
    if selector in names:
        return _with_shards(reference, str(selector), names)
    ggufs = [n for n in names if n.endswith(".gguf") and not is_companion(n)]
    first_shards = sorted({_first_shard(name) for name in ggufs})
    if selector is not None:
        return _with_shards(reference, _matching(reference, selector, first_shards), names)
    folder = _folder_files(names)
    if folder:
        return folder
    if not first_shards:
        raise UsageError(f"{reference}: the repository holds no GGUF or safetensors model")
    return _with_shards(reference, _preferred(reference, first_shards), names)


def is_companion(name: str) -> bool:
    """Whether a file goes beside a model and isn't one: a projector, draft model or matrix."""
    return _COMPANION.search(PurePosixPath(name).name) is not None


def quant_of(name: str) -> str:
    """The quantisation in a GGUF's file name, `UD-Q4_K_XL`; the whole stem if none is found."""
    stem = _stem(name)
    found = [m[0] for part in _suffixes(stem) if (m := _QUANT.fullmatch(part))]
    return found[0] if found else stem


def _folder_files(names: Sequence[str]) -> list[str]:
    """A safetensors model at the top of the repository; empty without one."""
    present = set(names)
    if "config.json" not in present:
        return []
    if "model.safetensors" in present:
        weights = ["model.safetensors"]
    else:
        weights = sorted(
            n
            for n in names
            if n.endswith(".safetensors") and "/" not in n and n.startswith("model-")
        )
    if not weights:
        return []
    index = [_INDEX] if _INDEX in present and len(weights) > 1 else []
    return [*weights, *index, *(n for n in _FOLDER_FILES if n in present)]


def _matching(reference: Reference, selector: str, first_shards: Sequence[str]) -> str:
    """The model whose file name ends in the selector, `UD-` variants only if asked for."""
    wanted = selector.lower()
    found = [n for n in first_shards if wanted in (s.lower() for s in _suffixes(_stem(n)))] or [
        n for n in first_shards if _stem(n).lower() == wanted
    ]
    exact = [n for n in found if quant_of(n).lower() == wanted]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if found:
        raise UsageError(
            f"{reference}: {len(exact or found)} files fit ({listed(exact or found)}); "
            "name the file"
        )
    have = listed(sorted({quant_of(n) for n in first_shards})) or "no GGUF files"
    raise UsageError(f"{reference}: nothing fits {selector!r}; the repository has {have}")


def _preferred(reference: Reference, first_shards: Sequence[str]) -> str:
    if len(first_shards) == 1:
        return first_shards[0]
    for quant in _PREFERRED:
        found = [n for n in first_shards if quant_of(n).upper() == quant]
        if len(found) == 1:
            return found[0]
    raise UsageError(
        f"{reference}: holds several models ({listed(first_shards)}); "
        f"say which, as in {reference.repo}:{quant_of(first_shards[0])}"
    )


def _with_shards(reference: Reference, name: str, names: Sequence[str]) -> list[str]:
    """All files of the split model that `name` is one of; `UsageError` if the set has holes."""
    path = PurePosixPath(name)
    files = [str(path.with_name(shard)) for shard in shards_of(path.name)]
    missing = [n for n in files if n not in names]
    if missing:
        raise UsageError(f"{reference}: the repository lacks {listed(missing)} of a split model")
    return files


def _first_shard(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_name(shards_of(path.name)[0]))


def _stem(name: str) -> str:
    """The file name without suffix and shard number."""
    base = PurePosixPath(name).name.removesuffix(".gguf")
    return re.sub(r"-\d{5}-of-\d{5}$", "", base)


def _suffixes(stem: str) -> list[str]:
    """What follows each separator, longest first, the whole included."""
    return [stem, *(stem[m.end() :] for m in re.finditer(r"[-.]", stem))]
