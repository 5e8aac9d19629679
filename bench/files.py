"""Files as users meet them: packing, starting, and memory, beside llama.cpp on the same GGUF.

    python bench/files.py MODEL.gguf [--peer LLAMA_BIN_DIR] [--scratch DIR] [--kills 10]

Measures, each in processes of its own: pack (MB/s of source, peak memory); start to first token,
from the GGUF and from the packed file, warm; peak memory after 64 tokens; the memory that two
processes on one packed file have each (Pss) and together; and that a pack killed at a random moment
leaves nothing that is accepted. Prints a line each and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from culet.errors import CuletError
from culet.formats.opening import open_checkpoint
from llama_cpp import BIN_DIR_HELP
from processes import run

_PROMPT = "The capital of France is"
_TOKENS = 64


def culet(*words: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "culet", *words]


def answer(model: Path, num_tokens: int, threads: int) -> list[str | Path]:
    words: list[str | Path] = ["run", model, "--raw", "-p", _PROMPT, "-n", str(num_tokens)]
    words += ["--temp", "0"]
    return culet(*words, "--ctx", "512", "--threads", str(threads))


def peer_answer(bin_dir: Path, model: Path, num_tokens: int, threads: int) -> list[str | Path]:
    command: list[str | Path] = [bin_dir / "llama-completion", "-m", model, "-p", _PROMPT]
    command += ["-n", str(num_tokens), "--temp", "0", "-c", "512", "-t", str(threads)]
    return [*command, "-no-cnv", "--ignore-eos"]


def measure_pack(model: Path, packed: Path, rounds: int) -> dict[str, Any]:
    found = []
    for _ in range(rounds):
        packed.unlink(missing_ok=True)
        found.append(run(culet("pack", model, "-o", packed)))
    size = model.stat().st_size
    return {
        "mb_per_s": size / 1e6 / median(f.seconds for f in found),
        "peak_rss_bytes": max(f.peak_rss_bytes for f in found),
    }


def measure_starts(
    model: Path, packed: Path, peer: Path | None, rounds: int, threads: int
) -> dict[str, Any]:
    """Median seconds from command to the end of one token, the sides alternating, files warm."""
    commands = {"gguf": answer(model, 1, threads), "packed": answer(packed, 1, threads)}
    if peer is not None:
        commands["llama_cpp"] = peer_answer(peer, model, 1, threads)
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for round_number in range(rounds + 1):
        for name, command in commands.items():
            seconds = run(command).seconds
            if round_number:  # the first only warms the page cache
                samples[name].append(seconds)
    return {name: median(values) for name, values in samples.items()}


def measure_memory(model: Path, packed: Path, peer: Path | None, threads: int) -> dict[str, Any]:
    """Peak resident bytes after `_TOKENS` tokens."""
    commands = {
        "gguf": answer(model, _TOKENS, threads),
        "packed": answer(packed, _TOKENS, threads),
    }
    if peer is not None:
        commands["llama_cpp"] = peer_answer(peer, model, _TOKENS, threads)
    return {name: run(command).peak_rss_bytes for name, command in commands.items()}


_HOLD = """
import sys, culet
llm = culet.load(sys.argv[1], context_length=512, max_seqs=1, threads=1)
llm.generate("The capital of France is", max_tokens=8, temperature=0, ignore_eos=True)
print("ready", flush=True)
sys.stdin.read()
"""


def measure_sharing(packed: Path) -> dict[str, Any]:
    """Rss and Pss of each of two processes that serve one packed file."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(packed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        return {f"process_{i}": rollup(p.pid) for i, p in enumerate(processes)}
    finally:
        for process in processes:
            process.communicate()


def rollup(pid: int) -> dict[str, int]:
    """Bytes by kind of one process, of /proc/PID/smaps_rollup."""
    kinds = ("Rss", "Pss", "Pss_File", "Private_Dirty")
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {kind.lower(): int(fields[kind].split()[0]) * 1024 for kind in kinds if kind in fields}


def measure_kills(model: Path, scratch: Path, count: int, seconds: float) -> dict[str, Any]:
    """Kill a pack at `count` random moments of the `seconds` that it takes."""
    out = scratch / "killed.culet"
    accepted = 0
    for number in range(count):
        process = subprocess.Popen(
            [str(c) for c in culet("pack", model, "-o", out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(random.Random(number).uniform(0.05, 0.95) * seconds)
        process.send_signal(signal.SIGKILL)
        was_killed = process.wait() == -signal.SIGKILL
        rest = [*scratch.glob(".killed.culet.*"), *([out] if out.exists() else [])]
        for path in rest:
            looks_whole = is_accepted(path)
            accepted += looks_whole and (was_killed or path != out)
            path.unlink()
    return {"kills": count, "accepted": accepted}


def is_accepted(path: Path) -> bool:
    """Whether the bytes would be opened under the right name."""
    named = path.with_name("accepted.culet")
    path.rename(named)
    try:
        open_checkpoint(named).close()
        return True
    except CuletError:
        return False
    finally:
        named.rename(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", type=Path, metavar="LLAMA_BIN_DIR", help=BIN_DIR_HELP)
    parser.add_argument("--scratch", type=Path, default=Path())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    packed = args.scratch / f"{args.model.stem}.culet"
    pack = measure_pack(args.model, packed, args.rounds)
    print(f"pack: {pack['mb_per_s']:.0f} MB/s, peak {pack['peak_rss_bytes'] / 1e9:.2f} GB")
    starts = measure_starts(args.model, packed, args.peer, args.rounds, args.threads)
    print("start to first token: " + ", ".join(f"{n} {s:.2f} s" for n, s in starts.items()))
    memory = measure_memory(args.model, packed, args.peer, args.threads)
    print("peak memory: " + ", ".join(f"{n} {b / 1e9:.2f} GB" for n, b in memory.items()))
    sharing = measure_sharing(packed)
    for name, kinds in sharing.items():
        print(f"{name}: " + ", ".join(f"{k} {b / 1e9:.2f} GB" for k, b in kinds.items()))
    seconds = args.model.stat().st_size / 1e6 / pack["mb_per_s"]
    kills = measure_kills(args.model, args.scratch, args.kills, seconds)
    print(f"killed {kills['kills']} times, {kills['accepted']} leftovers accepted")
    found = {"pack": pack, "start_seconds": starts, "peak_rss_bytes": memory}
    found |= {"sharing": sharing, "kills": kills, "model": args.model.name}
    print(json.dumps(found))
    return 1 if kills["accepted"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
