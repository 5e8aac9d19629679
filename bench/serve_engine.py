"""Batched decode through the engine beside `llama-batched-bench`, and what the engine itself costs.

    python bench/serve_engine.py MODEL [LLAMA_BIN_DIR] [--batches 1,2,4,8,16] [--rounds 3]

Every sample sends a batch of requests with fresh random prompts of `--prompt` tokens and times the
steps from the last first token to the first last token, all requests decoding. The engine's own
cost is the time of a step outside of the model's call (plan, page tables, sampling, handing out)
as a share of the model's. Prints a line a sample, median ratios, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import culet
from culet.engine.request import EnginePrompt, SamplingParams
from llama_cpp import BIN_DIR_HELP
from processes import run
from rows import append_row, commit, machine
from vs_llama_cpp import probe


def decode(llm: culet.LLM, batch: int, args: argparse.Namespace, seed: int) -> dict[str, float]:
    """Tokens per second of all requests together, and the engine's share."""
    rng = np.random.default_rng(seed)
    params = SamplingParams(
        max_tokens=args.tokens, temperature=args.temp, top_k=64, top_p=0.95, ignore_eos=True
    )
    vocab = llm.tokenizer.vocab_size
    handles = [
        llm.engine.submit(EnginePrompt(rng.integers(0, vocab, args.prompt).tolist()), params)
        for _ in range(batch)
    ]
    for handle in handles:
        next(handle)
    metrics = llm.engine.metrics
    steps, seconds, model = (
        metrics.steps.value, metrics.step_seconds.sum, metrics.model_seconds.value
    )  # fmt: skip
    tokens, begin = metrics.generated_tokens.value, time.perf_counter()
    while not handles[0].is_done:
        time.sleep(0.002)
    elapsed = time.perf_counter() - begin
    tokens = metrics.generated_tokens.value - tokens
    steps = metrics.steps.value - steps
    model = metrics.model_seconds.value - model
    seconds = metrics.step_seconds.sum - seconds
    for handle in handles:
        handle.result()
    return {
        "tokens_per_second": tokens / elapsed,
        "step_ms": 1e3 * seconds / steps,
        "overhead_ms": 1e3 * (seconds - model) / steps,
        "overhead_share": (seconds - model) / model,
    }


def decode_peer(bin_dir: Path, batch: int, args: argparse.Namespace) -> float:
    """Tokens per second of llama-batched-bench."""
    command = [bin_dir / "llama-batched-bench", "-m", args.model, "-t", args.threads]
    command += ["-npp", args.prompt, "-ntg", args.tokens, "-npl", batch, "-fa", "on"]
    command += ["-c", batch * (args.prompt + args.tokens) + 256, "-b", 2048, "-ub", 512]
    command += ["--output-format", "jsonl"]
    return float(run(command).last_object()["speed_tg"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("bin_dir", type=Path, nargs="?", metavar="LLAMA_BIN_DIR", help=BIN_DIR_HELP)
    parser.add_argument("--batches", default="1,2,4,8,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64, metavar="N")
    parser.add_argument("--tokens", type=int, default=32, metavar="N")
    parser.add_argument("--temp", type=float, default=1.0)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--append", type=Path, metavar="FILE", help="add the row to this file")
    args = parser.parse_args()
    batches = [int(b) for b in args.batches.split(",")]
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    with culet.load(
        args.model,
        backend=args.backend,
        threads=args.threads,
        context_length=args.prompt + args.tokens + 64,
        max_seqs=max(batches),
        prefix_cache=False,
    ) as llm:
        decode(llm, 1, args, seed=0)  # warm
        for index in range(args.rounds):
            for batch in batches:
                before = probe(args.threads)
                row: dict[str, Any] = decode(llm, batch, args, seed=1000 * index + batch)
                if args.bin_dir is not None:
                    row["peer"] = decode_peer(args.bin_dir, batch, args)
                    row["ratio"] = row["tokens_per_second"] / row["peer"]
                states = {before.state, probe(args.threads).state}
                row["state"] = states.pop() if len(states) == 1 else "mixed"
                rows[batch].append(row)
                print(f"x{batch:<3}", *(f"{k} {v:.4g}" for k, v in row.items() if k != "state"))
    summary = {
        str(batch): {
            key: median(row[key] for row in found)
            for key in found[0]
            if not isinstance(found[0][key], str)
        }
        for batch, found in rows.items()
    }
    row = {
        "what": "engine decode" + (" / llama-batched-bench" if args.bin_dir else ""),
        "model": args.model.name,
        "threads": args.threads,
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "batches": summary,
    }
    print(json.dumps(row))
    if args.append:
        append_row(args.append, row)


if __name__ == "__main__":
    sys.exit(main())
