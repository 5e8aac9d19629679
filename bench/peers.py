"""Culet beside its peers: measures into a file of results, and writes the tables of the documents.

    python bench/peers.py measure LLAMA_BIN_DIR MODEL... [--rounds 3] [--only NAME,...]
    python bench/peers.py table

`measure` runs Culet and llama.cpp in turns on each GGUF file: prefill, decode by depth of context,
batched decode, every row's logits, start to first token (files warm), memory, and completions over
HTTP from both servers. `table` writes docs/benchmarks.md and the block of README.md between its
marks from the results, of each figure the last one measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from files import answer, measure_starts, peer_answer
from http_load import free_port, serving, throughput
from llama_cpp import BIN_DIR_HELP
from processes import run
from rows import append_row, commit, machine
from vs_llama_cpp import (
    Test,
    batched_test,
    compare,
    decode_test,
    prefill_test,
    probe,
    score_test,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "peers.jsonl"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- bench/peers.py table: begin -->", "<!-- end -->"

SPEED_TESTS = [
    *(prefill_test(n) for n in (128, 512, 2048)),
    decode_test(num_tokens=48),
    *(decode_test(n) for n in (2048, 8192)),
    *(batched_test(n) for n in (2, 4, 8, 16)),
    score_test(),
]
CONCURRENCIES = (1, 4, 16)
HTTP_TOKENS = 32
_MEMORY_TOKENS = 64
# What README shows of them.
README_TESTS = ("prefill 512", "decode", "decode at 8192", "decode x4", "decode x16")


Results = dict[str, dict[str, dict[str, Any]]]  # rows by test by model, of one machine


@dataclass(frozen=True)
class Setting:
    """What all measurements of one file share."""

    bin_dir: Path
    model: Path
    threads: int
    rounds: int


def http(setting: Setting, concurrency: int) -> dict[str, Any]:
    """Tokens per second of both servers, in turns."""
    rounds = []
    for _ in range(setting.rounds):
        pair = {}
        for name, command in (("theirs", _peer_server), ("ours", _our_server)):
            port = free_port()
            with serving(command(setting, port), port):
                num_requests = max(3, 2 * concurrency)
                pair[name] = throughput(port, concurrency, num_requests, HTTP_TOKENS)
        rounds.append(pair)
        print(f"http x{concurrency}", *(f"{k} {v:.1f}" for k, v in pair.items()), flush=True)
    return {"unit": "tokens/s", "rounds": rounds}


def _our_server(setting: Setting, port: int) -> list[str | Path]:
    command: list[str | Path] = [sys.executable, "-m", "culet", "serve", setting.model]
    command += ["--port", str(port), "--threads", str(setting.threads)]
    return [*command, "--ctx", "1024", "--max-seqs", "16"]


def _peer_server(setting: Setting, port: int) -> list[str | Path]:
    command: list[str | Path] = [setting.bin_dir / "llama-server", "-m", setting.model]
    command += ["--host", "127.0.0.1", "--port", str(port), "-t", str(setting.threads)]
    return [*command, "-c", str(16 * 1024), "--parallel", "16", "-fa", "on"]


def start(setting: Setting) -> dict[str, Any]:
    """Seconds from command to the end of one token; `packed` starts from a packed file."""
    packed = setting.model.with_suffix(".culet")
    made = not packed.exists()
    if made:
        run([sys.executable, "-m", "culet", "pack", setting.model, "-o", packed])
    try:
        found = measure_starts(
            setting.model, packed, setting.bin_dir, setting.rounds, setting.threads
        )
    finally:
        if made:
            packed.unlink()
    print("start", *(f"{k} {v:.2f} s" for k, v in found.items()), flush=True)
    pair = {"ours": found["gguf"], "theirs": found["llama_cpp"], "packed": found["packed"]}
    return {"unit": "s", "rounds": [pair]}


def memory(setting: Setting) -> dict[str, Any]:
    """Peak resident bytes of a process that writes some tokens."""
    ours = run(answer(setting.model, _MEMORY_TOKENS, setting.threads)).peak_rss_bytes
    command = peer_answer(setting.bin_dir, setting.model, _MEMORY_TOKENS, setting.threads)
    theirs = run(command).peak_rss_bytes
    print(f"memory ours {ours / 2**30:.2f} theirs {theirs / 2**30:.2f} GiB", flush=True)
    return {"unit": "bytes", "rounds": [{"ours": ours, "theirs": theirs}]}


def measurements() -> dict[str, Callable[[Setting], dict[str, Any]]]:
    """All measurements by name, in the order of the tables."""

    def speed(test: Test) -> Callable[[Setting], dict[str, Any]]:
        return lambda s: (
            compare(test, s.bin_dir, s.model, s.threads, s.rounds) | {"unit": "tokens/s"}
        )

    def served(concurrency: int) -> Callable[[Setting], dict[str, Any]]:
        return lambda s: http(s, concurrency)

    found = {test.name: speed(test) for test in SPEED_TESTS}
    found |= {f"http x{n}": served(n) for n in CONCURRENCIES}
    return found | {"start": start, "memory": memory}


def measure(args: argparse.Namespace) -> None:
    chosen = measurements()
    if args.only:
        unknown = set(args.only.split(",")) - set(chosen)
        if unknown:
            raise SystemExit(f"no such measurement: {', '.join(unknown)}; of: {', '.join(chosen)}")
        chosen = {name: chosen[name] for name in args.only.split(",")}
    for model in args.models:
        for name, function in chosen.items():
            before = probe(args.threads).state
            found = function(Setting(args.bin_dir, model, args.threads, args.rounds))
            states = {before, probe(args.threads).state}
            row = {
                "test": name, "model": model.name, "threads": args.threads, "machine": machine(),
                "date": time.strftime("%Y-%m-%d"), "commit": commit(),
                "state": states.pop() if len(states) == 1 else "mixed", **found,
            }  # fmt: skip
            append_row(RESULTS, row)


def read_results() -> dict[str, Results]:
    """The last row of each machine, model and test: rows by test by model by machine."""
    found: dict[str, Results] = {}
    for row in map(json.loads, RESULTS.read_text().splitlines()):
        found.setdefault(row["machine"], {}).setdefault(row["model"], {})[row["test"]] = row
    return found


def where(results: Results) -> str:
    """Machine, date and number of rounds of one machine's results."""
    rows = [row for tests in results.values() for row in tests.values()]
    last = max(rows, key=lambda row: row["date"])
    rounds = min(len(row["rounds"]) for row in rows)
    return (
        f"{last['threads']} threads of an {last['machine']}, {last['date']}, "
        f"{rounds} round{'s' if rounds > 1 else ''} each at least"
    )


def cell(row: dict[str, Any] | None, key: str = "ours") -> str:
    """Ours / theirs and how many times better: medians over rounds of one state or another."""
    if row is None:
        return "-"
    pairs = [(r[key], r["theirs"]) for r in row["rounds"]]
    ours, theirs = (median(p[i] for p in pairs) for i in (0, 1))
    scale = 2**30 if row["unit"] == "bytes" else 1
    if row["unit"] == "tokens/s":
        ratio = median(o / t for o, t in pairs)
    else:
        ratio = median(t / o for o, t in pairs)
    return f"{_figure(ours / scale)} / {_figure(theirs / scale)}, **{ratio:.2f}**"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(_: argparse.Namespace) -> None:
    machines = read_results()
    DOCUMENT.write_text(_document(machines), encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    README.write_text(f"{head}{BEGIN}\n{_short(machines)}{END}{tail}", encoding="utf-8")


def _short(machines: dict[str, Results]) -> str:
    lines = [
        "Culet / llama.cpp on the same file; tokens/s, memory in GiB; in bold, how many times",
        "better; the machine by its best ISA level:",
        "",
        "| | " + " | ".join(README_TESTS) + " | memory |",
        "|---|" + "---:|" * (len(README_TESTS) + 1),
    ]
    for machine_name, results in machines.items():
        level = machine_name.rsplit(", ", 1)[-1]
        for model, rows in results.items():
            cells = [cell(rows.get(name)) for name in (*README_TESTS, "memory")]
            lines.append(f"| {Path(model).stem}, {level} | " + " | ".join(cells) + " |")
    lines += ["", *(f"- {where(results)}" for results in machines.values())]
    return "\n".join([*lines, ""])


_DOCUMENT = """\
# Benchmarks

Written by `bench/peers.py table` from `bench/results/peers.jsonl`; measured by
`bench/peers.py measure`.

Culet / llama.cpp on the same file, in turns in one run, and in bold how many times better Culet is:
the median over rounds of each round's ratio. Files have the true shapes of E2B and E4B with random
weights, their per-layer table in Q6_K. The peer is a Release build with native flags and its
defaults (repacking), flash attention on, f16 K/V. Shared hosts change their memory bandwidth by
half without notice: the rows in the results hold the probes around every round.

`decode xN`: N sequences of 64 tokens; `score`: the logits of every row of 512; `http xN`: whole
completions of {http_tokens} tokens, N at a time, from `culet serve` and `llama-server`; `start`:
seconds from the command to its first token, files warm; `memory`: GiB resident at most.

"""


def _document(machines: dict[str, Results]) -> str:
    lines = []
    for results in machines.values():
        lines += [
            f"## {where(results)}",
            "",
            "| | " + " | ".join(Path(m).stem for m in results) + " |",
            "|---|" + "---:|" * len(results),
        ]
        for name in measurements():
            cells = [cell(rows.get(name)) for rows in results.values()]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
            if name == "start":
                packed = [cell(rows.get(name), "packed") for rows in results.values()]
                lines.append("| start, packed file | " + " | ".join(packed) + " |")
        lines.append("")
    return _DOCUMENT.format(http_tokens=HTTP_TOKENS) + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    measured = commands.add_parser("measure", help="run both in turns, and add rows to the results")
    measured.add_argument("bin_dir", type=Path, metavar="LLAMA_BIN_DIR", help=BIN_DIR_HELP)
    measured.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    measured.add_argument("--rounds", type=int, default=3)
    measured.add_argument("--threads", type=int, default=2)
    measured.add_argument("--only", help="names of measurements, separated by commas")
    measured.set_defaults(run=measure)
    written = commands.add_parser("table", help="write docs/benchmarks.md and README's table")
    written.set_defaults(run=table)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
