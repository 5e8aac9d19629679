"""Does llama.cpp answer the goldens of the built-in model as transformers does?

    python bench/builtin_in_llama_cpp.py LLAMA_BIN_DIR [MODEL]

Prints each prompt whose greedy answer differs, with a verdict on its first different token: a
near-tie (fp32 picks one of the two, and its margin is at most the peer's largest error on that row)
or a difference; then the count. Exit status 1 if fewer than 38 of 40 are equal, or any difference
is no near-tie.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import culet
from culet.builtin import MODEL_PATH
from llama_cpp import BIN_DIR_HELP, Server, running_server

ROOT = Path(__file__).parents[1]
GOLDENS = ROOT / "tests" / "builtin" / "goldens.json"
FOLDER = ROOT / "models" / "builtin"
NUM_VOCAB = 4096
MIN_EQUAL = 38


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin_dir", type=Path, metavar="LLAMA_BIN_DIR", help=BIN_DIR_HELP)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL_PATH)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    goldens = json.loads(GOLDENS.read_text(encoding="utf-8"))
    num_equal, num_unexplained = 0, 0
    with (
        culet.load(FOLDER, backend="reference", kv_type="f32", context_length=1024) as exact,
        running_server(args.bin_dir, args.model, args.threads, num_ctx=1024) as peer,
    ):
        for golden in goldens:
            place = first_difference(peer, golden)
            num_equal += place is None
            if place is not None:
                is_near, line = verdict(exact, peer, golden, place)
                num_unexplained += not is_near
                print(line)
    print(f"{num_equal} of {len(goldens)} answers are equal, {num_unexplained} are no near-tie")
    return int(num_equal < MIN_EQUAL or num_unexplained > 0)


def first_difference(peer: Server, golden: dict[str, Any]) -> int | None:
    """Where the peer's answer leaves the golden one; the token that ends it may be left out."""
    wanted = golden["answer_ids"]
    given = peer.greedy(golden["prompt_ids"], len(wanted))
    if given in (wanted, wanted[:-1]):
        return None
    pairs = enumerate(zip(given, wanted, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(given), len(wanted)))


def verdict(exact: culet.LLM, peer: Server, golden: dict[str, Any], place: int) -> tuple[bool, str]:
    ids = golden["prompt_ids"] + golden["answer_ids"][:place]
    ours = exact.logits(ids)[-1].astype(np.float64)
    ours -= np.logaddexp.reduce(ours)
    theirs = np.full(NUM_VOCAB, np.nan)
    for token, log_prob in peer.top_log_probs(ids, NUM_VOCAB).items():
        theirs[token] = log_prob
    chosen, best = int(np.nanargmax(theirs)), int(ours.argmax())
    known = ours > ours[best] - 10  # far below, errors are large and decide nothing
    error = float(np.nanmax(np.abs(theirs - ours)[known]))
    margin = float(ours[best] - ours[chosen])
    is_near = margin <= error
    what = "near-tie" if is_near else "DIFFERENCE"
    text = golden["prompt"].splitlines()[-2:]
    return is_near, f"{what}: {text} at {place}: margin {margin:.3f}, peer's error {error:.3f}"


if __name__ == "__main__":
    sys.exit(main())
