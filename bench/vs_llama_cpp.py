"""Culet beside llama.cpp on the same file, threads and machine, in one run.

    python bench/vs_llama_cpp.py LLAMA_BIN_DIR MODEL [--tests "prefill 512,decode,..."] [--rounds 3]

The two programs alternate. Before and after each sample two probes run: a read of a large buffer
on all threads (GB/s) and an empty fork-join. Shared hosts have hidden states (both virtual cores on
one core complex or on two) that change the bandwidth by half, and the probes tell them apart: a
round counts for a state only if all its probes agree on it. Prints median ratios by test and state,
and one JSON line; `--append FILE` adds that line to a file of results.

A decode step of one sequence reads every weight once: its row also has the rate at which our bytes
of weights passed, as a share of what the probes before and after it read.

The peer must be a Release build with native flags; it runs with its defaults (repacking, flash
attention on) and f16 K/V.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from culet import _native
from llama_cpp import BIN_DIR_HELP
from processes import run
from rows import append_row, commit, machine

FAST_READ_GB_PER_S = 42.0  # between the two states measured on the test machine: 33-35 and 52-62
PROBE_BYTES = 512 << 20
LICENSE = Path(__file__).parents[1] / "LICENSE"  # some text


@dataclass(frozen=True)
class Probe:
    read_gb_per_s: float
    fork_join_ns: float

    @property
    def state(self) -> str:
        return "fast" if self.read_gb_per_s >= FAST_READ_GB_PER_S else "slow"


@dataclass(frozen=True)
class Test:
    """One measurement and how each side makes it.

    Attributes:
        ours: arguments of `culet bench`.
        ours_name: the test's name in its results.
        peer: program and arguments; the model and the threads are added.
    """

    name: str
    ours: tuple[str, ...]
    ours_name: str
    peer: tuple[str, ...]


def bench_args(prefill: str = "0", decode: int = 0, **more: str) -> tuple[str, ...]:
    words = ["-p", prefill, "-n", str(decode), "-b", "1", "-r", "1"]
    for option, value in more.items():
        words += [f"--{option.replace('_', '-')}", value]
    return tuple(words)


_LLAMA_BENCH = ("llama-bench", "-r", "1", "-fa", "on", "-o", "jsonl")


def prefill_test(num_tokens: int) -> Test:
    """Prompts of `num_tokens`, the logits of their last one."""
    name = f"prefill {num_tokens}"
    peer = (*_LLAMA_BENCH, "-p", str(num_tokens), "-n", "0")
    return Test(name, bench_args(str(num_tokens), repeats="2"), name, peer)


def decode_test(depth: int = 0, num_tokens: int = 24) -> Test:
    """One sequence, `num_tokens` steps after `depth` tokens of context."""
    if not depth:
        peer = (*_LLAMA_BENCH, "-p", "0", "-n", str(num_tokens))
        return Test("decode", bench_args(decode=num_tokens), "decode x1 at 1", peer)
    peer = (*_LLAMA_BENCH, "-p", "0", "-n", str(num_tokens), "-d", str(depth))
    ours = bench_args(decode=num_tokens, depths=str(depth))
    return Test(f"decode at {depth}", ours, f"decode x1 at {depth}", peer)


def batched_test(batch: int) -> Test:
    """`batch` sequences of 64 tokens, decoded side by side."""
    peer = ("llama-batched-bench", "-npp", "64", "-ntg", "32", "-fa", "on")
    peer += ("-b", "2048", "-ub", "512", "--output-format", "jsonl")
    peer += ("-c", str(batch * 128), "-npl", str(batch))
    ours = bench_args(decode=24, depths="64", batches=str(batch))
    return Test(f"decode x{batch}", ours, f"decode x{batch} at 64", peer)


def score_test() -> Test:
    """All layers for every row, logits of the second half: what llama-perplexity computes."""
    peer = ("llama-perplexity", "-c", "512", "-b", "512", "--chunks", "2", "-fa", "on")
    return Test("score 512", bench_args(score="512", repeats="2"), "score 512", peer)


def tests(depth: int) -> list[Test]:
    return [
        prefill_test(512),
        decode_test(num_tokens=48),
        decode_test(depth),
        score_test(),
        batched_test(4),
        batched_test(16),
    ]


def probe(threads: int) -> Probe:
    reads = [_native.probe_read(threads, PROBE_BYTES) for _ in range(3)]
    joins = [_native.probe_fork_join(threads, 2000) for _ in range(3)]
    return Probe(median(reads), median(joins))


@dataclass(frozen=True)
class Ours:
    """One `culet bench`.

    Attributes:
        weight_bytes: what a decode step of one sequence reads of the weights; tables that are
            only looked up in are not in it.
    """

    tokens_per_second: float
    peak_rss_bytes: int
    weight_bytes: int


def run_ours(model: Path, test: Test, threads: int) -> Ours:
    command = [sys.executable, "-m", "culet", "bench", str(model), "--json"]
    command += ["--threads", str(threads), *test.ours]
    found = run(command).last_object()
    row = next(r for r in found["results"] if r["test"] == test.ours_name)
    held = found["held_bytes"]
    # A tied token table is the head.
    weight_bytes = held["layers"] + (held.get("head") or held["token table"])
    return Ours(row["tokens_per_second"], found["peak_rss_bytes"], weight_bytes)


def run_peer(bin_dir: Path, model: Path, test: Test, threads: int, text: Path) -> tuple[float, int]:
    """Tokens per second and peak resident bytes of one run of a llama.cpp program."""
    program, *words = test.peer
    command = [str(bin_dir / program), "-m", str(model), "-t", str(threads), *words]
    if program == "llama-perplexity":
        command += ["-f", str(text)]
    done = run(command)
    if program == "llama-perplexity":
        seconds = float(re.findall(r"([\d.]+) seconds per pass", done.output)[-1])
        return 512 / seconds, done.peak_rss_bytes
    row = done.last_object()
    return row["avg_ts" if program == "llama-bench" else "speed_tg"], done.peak_rss_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin_dir", type=Path, metavar="LLAMA_BIN_DIR", help=BIN_DIR_HELP)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tests", help="names, separated by commas (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=8192)
    parser.add_argument("--text", type=Path, default=LICENSE)
    parser.add_argument("--append", type=Path, metavar="FILE", help="add the row to this file")
    args = parser.parse_args()
    chosen = tests(args.depth)
    if args.tests:
        wanted = args.tests.split(",")
        chosen = [t for t in chosen if t.name in wanted]
    summary: dict[str, Any] = {}
    for test in chosen:
        summary[test.name] = compare(
            test, args.bin_dir, args.model, args.threads, args.rounds, args.text
        )
    row = {
        "what": "culet / llama.cpp",
        "model": args.model.name,
        "threads": args.threads,
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "tests": summary,
    }
    print(json.dumps(row))
    if args.append:
        append_row(args.append, row)


def compare(
    test: Test, bin_dir: Path, model: Path, threads: int, num_rounds: int, text: Path = LICENSE
) -> dict[str, Any]:
    """All rounds of one test, and the median ratio of each state."""
    rounds: list[dict[str, Any]] = []
    by_state: dict[str, list[tuple[float, float]]] = defaultdict(list)
    peaks: list[tuple[int, int]] = []
    shares: dict[str, list[float]] = defaultdict(list)
    for _ in range(num_rounds):
        probes = [probe(threads)]
        theirs, their_peak = run_peer(bin_dir, model, test, threads, text)
        probes.append(probe(threads))
        ours = run_ours(model, test, threads)
        probes.append(probe(threads))
        states = {p.state for p in probes}
        state = states.pop() if len(states) == 1 else "mixed"
        speed = ours.tokens_per_second
        by_state[state].append((speed, theirs))
        peaks.append((ours.peak_rss_bytes, their_peak))
        found = {"ours": speed, "theirs": theirs, "probes": [asdict(p) for p in probes]}
        reads = ", ".join(f"{p.read_gb_per_s:.0f}" for p in probes)
        line = (
            f"{test.name:<16} {state:<5} ours {speed:8.2f}  theirs {theirs:8.2f} tokens/s  "
            f"ratio {speed / theirs:5.2f}  read {reads} GB/s  "
            f"peak {ours.peak_rss_bytes / 2**30:.2f} / {their_peak / 2**30:.2f} GiB"
        )
        if test.name == "decode":
            share = read_share(ours, probes[1:])
            shares[state].append(share)
            found["read_share"] = share
            line += f"  weights at {share:.2f} of the read"
        rounds.append(found)
        print(line, flush=True)
    medians = {s: median(o / t for o, t in pairs) for s, pairs in by_state.items()}
    print(f"{test.name:<16} " + "  ".join(f"{s}: {r:.2f}" for s, r in medians.items()), flush=True)
    return {
        "ratio": medians,
        "peak_rss_ratio": median(o / t for o, t in peaks),
        **({"read_share": {s: median(v) for s, v in shares.items()}} if shares else {}),
        "rounds": rounds,
    }


def read_share(ours: Ours, probes: list[Probe]) -> float:
    """Rate at which a step of one sequence reads weights, over that of the probes around it."""
    read = sum(p.read_gb_per_s for p in probes) / len(probes)
    return ours.weight_bytes * ours.tokens_per_second / 1e9 / read


if __name__ == "__main__":
    main()
