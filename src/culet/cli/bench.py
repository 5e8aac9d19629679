"""`culet bench`: prefill, decode, batched decode, load time and memory of one model."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

from culet import system
from culet.cli.options import add_engine_options, add_model_argument, positive_int, resolve_model
from culet.cli.output import format_bytes, line_printer, print_json
from culet.engine.config import EngineConfig
from culet.engine.measure import Measurement
from culet.errors import UsageError
from culet.formats.opening import open_checkpoint
from culet.llm.loading import load_model
from culet.llm.memory import held_bytes_by_role
from culet.llm.placement import decide_holding, tell_system
from culet.models.registry import read_config
from culet.ops.interface import Ops, Profiled
from culet.ops.select import load_ops


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser, has_default=True)
    _add_measurements(parser.add_argument_group("what is measured (0 leaves a part out)"))
    add_engine_options(parser, has_context=False)
    parser.add_argument("--profile", action="store_true", help="time by op after each result")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")


def _add_measurements(what: argparse._ArgumentGroup) -> None:
    what.add_argument(
        "-p",
        "--prefill",
        type=counts,
        default=[512],
        metavar="N,...",
        help="prompts of so many tokens (default: 512)",
    )
    what.add_argument(
        "-n",
        "--decode",
        type=count,
        default=64,
        metavar="STEPS",
        help="tokens written to each sequence (default: 64)",
    )
    what.add_argument(
        "-d",
        "--depths",
        type=counts,
        default=[1],
        metavar="N,...",
        help="after contexts of so many tokens (default: 1)",
    )
    what.add_argument(
        "-b",
        "--batches",
        type=counts,
        default=[1, 4, 16],
        metavar="N,...",
        help="with so many sequences at once (default: 1,4,16)",
    )
    what.add_argument(
        "--verify",
        type=counts,
        default=[],
        metavar="N,...",
        help="steps that check so many draft tokens (default: none)",
    )
    what.add_argument(
        "--score",
        type=counts,
        default=[],
        metavar="N,...",
        help="all layers for every row, logits of the second half, as for a perplexity "
        "(default: none)",
    )
    what.add_argument(
        "-r",
        "--repeats",
        type=positive_int,
        default=3,
        metavar="N",
        help="samples of each prefill and score (default: 3)",
    )
    what.add_argument(
        "--wall", action="store_true", help="compare decode with whole answers of 1 and 129 tokens"
    )


def count(text: str) -> int:
    """An argparse type: a whole number, 0 included."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def counts(text: str) -> list[int]:
    """An argparse type: whole numbers separated by commas; `0` is the empty list."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [-1]
    if min(values) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 1,4,16")
    return [v for v in values if v]


def run(args: argparse.Namespace) -> int:
    path = resolve_model(args.model)
    holding = decide_holding(args.embed_weights, args.load_mode)
    checkpoint = open_checkpoint(path, load_mode=holding.load_mode)
    config = read_config(checkpoint)
    ops = load_ops(args.backend, threads=args.threads, precision=args.precision)
    start = time.perf_counter()
    loaded = load_model(config, checkpoint, ops, holding.table)
    tell_system(checkpoint, loaded.binding, holding)
    load_seconds = time.perf_counter() - start
    engine = EngineConfig(
        context_length=context_needed(args),
        max_seqs=max(args.batches, default=1),
        kv_type=args.kv_type,
    )
    if engine.context_length > config.context_length:
        raise UsageError(
            f"these measurements need a context of {engine.context_length} tokens, "
            f"the model has {config.context_length}"
        )
    profiled = start_profile(ops) if args.profile else None
    say = line_printer(args.json)
    say(f"{path}: loaded in {load_seconds:.2f} s")
    say(f"{'test':<24} {'tokens/s':>10} {'ms':>10}   20% to 80% of the samples, ms")
    rows = []
    for row in measure(Measurement(loaded.model, ops, engine), args):
        rows.append(row)
        say(line_of(row))
        if profiled is not None:
            row["ops"] = profiled.take_profile()
            say("\n".join(profile_lines(row["ops"])))
    peak = system.peak_resident_bytes()
    if peak is not None:
        say(f"peak memory {format_bytes(peak)}")
    if args.json:
        print_json(
            {
                "model": str(path),
                "backend": ops.name,
                "threads": args.threads,
                "load_seconds": load_seconds,
                "peak_rss_bytes": peak,
                "held_bytes": held_bytes_by_role(loaded.held_bytes()),
                "results": rows,
            }
        )
    return 0


def start_profile(ops: Ops) -> Profiled:
    """Let the backend keep times by op; `UsageError` if it keeps none."""
    if not isinstance(ops, Profiled):
        raise UsageError(f"backend {ops.name} keeps no times by op; --profile goes with cpu")
    ops.set_profile(True)
    return ops


def context_needed(args: argparse.Namespace) -> int:
    """Tokens of the longest sequence that the chosen measurements make."""
    deepest = max(args.depths, default=1)
    steps = args.decode * max([1, *args.verify])
    whole = [*args.prefill, *args.score, deepest + steps, 129 if args.wall else 0]
    return int(max(whole)) + 1


def measure(m: Measurement, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The chosen measurements, one result each; every one after a warm-up of its own kind."""
    for count in args.prefill:
        yield sampled(f"prefill {count}", count, partial(m.prefill, count), args.repeats)
    for count in args.score:
        yield sampled(f"score {count}", count, partial(m.score, count), args.repeats)
    if not args.decode:
        return
    for depth in args.depths:
        for batch in args.batches:
            step = partial(m.decode, args.decode, batch, depth)
            yield sampled(f"decode x{batch} at {depth}", batch, step, 1)
    for count in args.verify:
        yield sampled(f"verify {count}", count, partial(m.verify, count, args.decode, 1), 1)
    if args.wall:
        pairs = [(m.answer(1, 1), m.answer(1, 129)) for _ in range(args.repeats)]
        yield result("decode by wall", 1, [(long - short) / 128 for short, long in pairs])


def sampled(
    name: str, num_tokens: int, call: Callable[[], float | list[float]], repeats: int
) -> dict[str, Any]:
    """A measurement of `num_tokens` a sample; the first call is a warm-up."""
    call()
    seconds: list[float] = []
    for _ in range(repeats):
        new = call()
        seconds += new if isinstance(new, list) else [new]
    return result(name, num_tokens, seconds)


def result(name: str, num_tokens: int, seconds: list[float]) -> dict[str, Any]:
    return {
        "test": name,
        "tokens_per_second": num_tokens / median(seconds),
        "median_seconds": median(seconds),
        "seconds": seconds,
    }


def profile_lines(ops: dict[str, tuple[int, float]]) -> Iterator[str]:
    """Share of the time of each op of all samples of a result, warm-up included."""
    total = sum(seconds for _, seconds in ops.values())
    for name, (calls, seconds) in sorted(ops.items(), key=lambda item: -item[1][1]):
        yield f"  {name:<22} {calls:>8} calls {seconds / total:>7.1%} {seconds * 1e3:>12.2f}"


def line_of(row: dict[str, Any]) -> str:
    ordered = sorted(row["seconds"])
    low, high = (ordered[int(share * (len(ordered) - 1))] * 1e3 for share in (0.2, 0.8))
    speed, milliseconds = row["tokens_per_second"], row["median_seconds"] * 1e3
    return f"{row['test']:<24} {speed:>10.2f} {milliseconds:>10.2f}   {low:.2f} to {high:.2f}"
