"""`culet check`: would these files be served? Reads headers only, so cut-off stubs are enough."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from culet import system
from culet.cli.options import byte_size, resolve_model
from culet.cli.output import format_bytes, line_printer, print_json
from culet.engine.config import EngineConfig
from culet.errors import CuletError, ModelFileError
from culet.formats.binding import Binding
from culet.formats.checkpoint import Checkpoint
from culet.formats.shards import listed
from culet.llm.describe import damaged_parts, describe
from culet.llm.dry_run import VocabularyCheck, check_chat, check_weights
from culet.llm.placement import decide_holding
from culet.llm.plan import longest_context, weight_groups
from culet.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one path.

    Attributes:
        reason: why not; None for a served file.
        types: tensors by quant type.
        fitting_context: tokens of the longest context that fits in memory; 0 for none.
    """

    path: str
    served: bool
    reason: str | None
    architecture: str | None = None
    file_bytes: int | None = None
    types: dict[str, int] | None = None
    fitting_context: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="GGUF files, packed files or model folders"
    )
    parser.add_argument(
        "--memory",
        type=byte_size,
        metavar="SIZE",
        help="name the context that fits in so much memory, such as 8GiB (default: what is free)",
    )
    parser.add_argument(
        "--verify", action="store_true", help="read packed files whole and compare every hash"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    vocabularies = VocabularyCheck()
    memory = system.available_bytes() if args.memory is None else args.memory
    verdicts = [verdict_on(name, vocabularies, memory, args.verify) for name in args.paths]
    say = line_printer(args.json)
    for verdict in verdicts:
        say(line_of(verdict))
    num_served = sum(v.served for v in verdicts)
    if len(verdicts) > 1:
        say(f"{num_served} of {len(verdicts)} would be served")
    if args.json:
        print_json({"served": num_served, "files": [asdict(v) for v in verdicts]})
    return 0 if num_served == len(verdicts) else ModelFileError.exit_code


def verdict_on(
    name: str,
    vocabularies: VocabularyCheck,
    memory_bytes: int | None = None,
    verify: bool = False,
) -> Verdict:
    """The verdict on one path; errors become the reason.

    Args:
        memory_bytes: for the context that fits; None: unknown, so anything does.
        verify: compare the hashes of a packed file; other files have none.
    """
    fitting = 0

    def examine(config: ModelConfig, checkpoint: Checkpoint, binding: Binding) -> None:
        nonlocal fitting
        check_weights(config, checkpoint, binding)
        vocabularies.check(checkpoint)
        check_chat(checkpoint)
        groups = weight_groups(checkpoint, binding, decide_holding("auto", "mmap"))
        engine = EngineConfig(context_length=config.context_length, max_seqs=1)
        weight_bytes = sum(group.private_bytes for group in groups)
        fitting = longest_context(config, engine, weight_bytes, memory_bytes)

    try:
        path: Path = resolve_model(name, fetch=False)
        found = describe(path, header_only=True, examine=examine)
        damaged = damaged_parts(path) if verify else []
    except CuletError as error:
        return Verdict(name, False, str(error))
    if damaged:
        return Verdict(name, False, f"damaged: {listed(damaged)}")
    types = Counter(t.type_name for t in found.tensors)
    return Verdict(
        name,
        True,
        None,
        found.config.architecture,
        found.file_bytes,
        dict(types.most_common()),
        fitting,
    )


def line_of(verdict: Verdict) -> str:
    if not verdict.served:
        # A reason that begins with the path says it once.
        reason = (verdict.reason or "").removeprefix(f"{verdict.path}: ")
        return f"refused  {verdict.path}: {reason}"
    assert verdict.types is not None and verdict.file_bytes is not None
    types = ", ".join(f"{count} {name}" for name, count in verdict.types.items())
    size = format_bytes(verdict.file_bytes)
    context = f"context of {verdict.fitting_context} tokens fits"
    if not verdict.fitting_context:
        context = "doesn't fit in memory"
    return f"served   {verdict.path}: {verdict.architecture}, {size}, {types}, {context}"
