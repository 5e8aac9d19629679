"""Is our arithmetic as close to exact as llama.cpp's, on the same file?

    python bench/quality_vs_llama_cpp.py kl LLAMA_BIN_DIR MODEL [--text FILE]
    python bench/quality_vs_llama_cpp.py greedy LLAMA_BIN_DIR MODEL

`kl`: mean KL divergence of next-token distributions from our `reference` backend (exactly
dequantised fp32, f32 K/V), for llama.cpp and for our `cpu`. `greedy`: continuations of five
prompts, and whether each first difference is a near-tie: fp32 picks one of the two candidates, and
their fp32 margin is at most the larger of the two engines' largest logit errors on that row. One
JSON line at the end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import culet
import llama_cpp

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small dragon who",
    "Water boils at a temperature of",
    "def fibonacci(n):\n",
    "The three most important things in life are",
]
TOP_TOKENS = 256  # enough that the largest logit error of a row's plausible tokens is among them


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    z = logits.astype(np.float64)
    z -= z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def mean_kl(exact: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Mean over rows of sum p_exact (log p_exact - log p_other)."""
    return float((np.exp(exact) * (exact - other)).sum(axis=-1).mean())


def kl(args: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        peer = llama_cpp.save_logits(
            args.bin_dir, args.model, args.text, Path(folder) / "logits", args.ctx, args.chunks, 2
        )
    sums = {"llama.cpp": 0.0, "culet cpu": 0.0}
    same_top = dict.fromkeys(sums, 0)
    num_rows = 0
    with culet.load(args.model, backend="reference", kv_type="f32", context_length=args.ctx) as llm:
        bos = llm.tokenizer.bos_id
        chunks = [[bos, *map(int, tokens[1:])] for tokens in peer.tokens]
        rows = slice(args.ctx // 2, args.ctx - 1)
        exact_rows = [log_softmax(llm.logits(ids)[rows]) for ids in chunks]
    with culet.load(args.model, backend="cpu", context_length=args.ctx) as llm:
        for ids, exact, theirs in zip(chunks, exact_rows, peer.log_probs, strict=True):
            for name, other in (
                ("llama.cpp", theirs.astype(np.float64)),
                ("culet cpu", log_softmax(llm.logits(ids)[rows])),
            ):
                sums[name] += mean_kl(exact, other) * len(exact)
                same_top[name] += int((exact.argmax(-1) == other.argmax(-1)).sum())
            num_rows += len(exact)
    result: dict[str, object] = {"model": args.model.name, "rows": num_rows}
    for name, total in sums.items():
        result[f"kl {name}"] = total / num_rows
        result[f"same top {name}"] = same_top[name] / num_rows
        print(f"{name:10s} mean KL {total / num_rows:.3e}  same top {same_top[name]}/{num_rows}")
    result["ratio"] = sums["culet cpu"] / sums["llama.cpp"]
    print(f"ratio ours / theirs: {result['ratio']:.3f}")
    return result


def judge(exact: NDArray, ours: NDArray, theirs: dict[int, float], a: int, b: int) -> dict:
    """The near-tie verdict on one row where we chose `a` and the peer `b`."""
    known = [i for i in theirs if exact[i] > exact.max() - 10]
    our_error = max(abs(ours[i] - exact[i]) for i in known)
    their_error = max(abs(theirs[i] - exact[i]) for i in known)
    margin = abs(exact[a] - exact[b])
    near = int(exact.argmax()) in (a, b) and margin <= max(our_error, their_error)
    return {
        "ours": a,
        "theirs": b,
        "fp32": int(exact.argmax()),
        "margin": float(margin),
        "our error": float(our_error),
        "their error": float(their_error),
        "near-tie": bool(near),
    }


def greedy(args: argparse.Namespace) -> dict[str, object]:
    found = []
    with (
        llama_cpp.running_server(args.bin_dir, args.model, 2, 2048) as server,
        culet.load(args.model, backend="cpu", context_length=2048) as llm,
        culet.load(args.model, backend="reference", context_length=2048, kv_type="f32") as exact,
    ):
        for text in PROMPTS:
            prompt = llm.tokenizer.encode(text, add_bos=True)
            ours = llm.generate(text, max_tokens=args.tokens, temperature=0).token_ids
            theirs = server.greedy(prompt, args.tokens)
            pairs = enumerate(zip(ours, theirs, strict=False))
            same = next((i for i, (a, b) in pairs if a != b), None)
            row: dict[str, object] = {"prompt": text, "first difference": same}
            if same is not None:
                ids = [*prompt, *ours[:same]]
                row |= judge(
                    log_softmax(exact.logits(ids)[-1]),
                    log_softmax(llm.logits(ids)[-1]),
                    server.top_log_probs(ids, TOP_TOKENS),
                    ours[same],
                    theirs[same],
                )
            print(row)
            found.append(row)
    return {"model": args.model.name, "prompts": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["kl", "greedy"])
    parser.add_argument("bin_dir", type=Path, metavar="LLAMA_BIN_DIR", help=llama_cpp.BIN_DIR_HELP)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[1] / "LICENSE")
    parser.add_argument("--ctx", type=int, default=256)
    parser.add_argument("--chunks", type=int, default=3, help="of --ctx tokens (kl)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (greedy)")
    parser.add_argument("--scratch", type=Path, help="folder for llama.cpp's logits file")
    args = parser.parse_args()
    result = kl(args) if args.what == "kl" else greedy(args)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
