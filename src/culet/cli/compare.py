"""`culet compare`: token ids, or greedy answers and logits, against a reference."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import culet
from culet.cli.options import (
    add_engine_options,
    add_model_argument,
    load_options,
    positive_int,
    resolve_model,
)
from culet.cli.output import line_printer, print_json
from culet.errors import CuletError, UsageError
from culet.evals.divergence import Comparison, RowDifference
from culet.evals.logits import JudgedAnswer, compare_logits, differing
from culet.evals.odd_texts import odd_texts
from culet.evals.scoring import read_text
from culet.evals.tokens import TokenDifference, compare_tokens, open_encoder

_SHOWN = 20  # differences printed for people; --json has all
# An engine that is wrong has errors that excuse any margin, so a near-tie means something only
# beside a small KL divergence. Gemma 4 E2B in Q4_K_M costs 0.09 nats (perplexity 9.14 for 8.32).
_LARGE_KL = 0.1
_PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
    "1, 2, 4, 8, 16,",
    "The main difference between TCP and UDP is",
    "Liebe Grüße aus",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="tokens|logits", required=True)
    tokens = kinds.add_parser("tokens", help="token ids of many odd texts")
    add_model_argument(tokens)
    tokens.add_argument(
        "--with",
        dest="reference",
        metavar="REF",
        required=True,
        help="a Hugging Face folder, tokenizer.json or GGUF file",
    )
    tokens.add_argument(
        "--texts", type=Path, metavar="FILE", help="more texts: one a line, or JSONL with `text`"
    )
    tokens.add_argument("--json", action="store_true", help="one JSON object on the last line")
    logits = kinds.add_parser("logits", help="greedy answers and the logits behind them")
    add_model_argument(logits)
    logits.add_argument(
        "--with", dest="reference", metavar="REF", required=True, help="the same model elsewhere"
    )
    logits.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts: one a line, or JSONL with `text` (default: six of ours)",
    )
    logits.add_argument(
        "-n", "--tokens", type=positive_int, default=32, help="of each answer (default: 32)"
    )
    add_engine_options(logits)
    logits.add_argument("--json", action="store_true", help="one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    return run_tokens(args) if args.kind == "tokens" else run_logits(args)


def run_tokens(args: argparse.Namespace) -> int:
    ours = open_encoder(resolve_model(args.model), is_reference=False)
    theirs = open_encoder(resolve_model(args.reference), is_reference=True)
    texts = odd_texts()
    if args.texts is not None:
        texts |= texts_of(args.texts)
    found = compare_tokens(ours, theirs, texts)
    say = line_printer(args.json)
    for difference in found[:_SHOWN]:
        say(token_line(difference))
    if len(found) > _SHOWN:
        say(f"... and {len(found) - _SHOWN} more")
    say(f"{len(texts)} texts, {len(found)} with other ids than {theirs.made_by}")
    if args.json:
        print_json(
            {
                "texts": len(texts),
                "reference": theirs.made_by,
                "differences": [asdict(d) for d in found],
            }
        )
    return CuletError.exit_code if found else 0


def run_logits(args: argparse.Namespace) -> int:
    prompts = list(texts_of(args.prompts).values()) if args.prompts else list(_PROMPTS)
    ours, theirs = resolve_model(args.model), resolve_model(args.reference)
    load = partial(culet.load, **load_options(args), max_seqs=1, prefix_cache=False)
    judged = compare_logits(
        partial(load, ours),
        partial(load, theirs),
        partial(load, theirs, precision="exact"),
        prompts,
        args.tokens,
    )
    say = line_printer(args.json)
    for line in logit_lines(prompts, judged):
        say(line)
    verdicts = Counter(j.comparison.verdict for j in judged)
    if args.json:
        print_json(
            {
                "verdicts": dict(verdicts),
                "kl": summaries([j.comparison for j in judged]),
                "prompts": [
                    {
                        "prompt": prompt,
                        "answer": j.text,
                        "verdict": j.comparison.verdict,
                        "rows": j.comparison.num_rows,
                        "differences": [
                            asdict(d) | {"verdict": d.verdict} for d in j.comparison.differences
                        ],
                    }
                    for prompt, j in zip(prompts, judged, strict=True)
                ],
            }
        )
    return CuletError.exit_code if verdicts["different"] else 0


def texts_of(path: Path) -> dict[str, str]:
    """The texts of a file: a line each, or `text` of each object if it is JSONL."""
    texts: dict[str, str] = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        if path.suffix == ".jsonl":
            try:
                line = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(f"{path}: line {number} is no object with a text") from error
            if not isinstance(line, str):
                raise UsageError(f"{path}: line {number} has a text that is no string")
        texts[f"{path.name}:{number}"] = line
    if not texts:
        raise UsageError(f"{path}: holds no texts")
    return texts


def token_line(d: TokenDifference) -> str:
    return (
        f"{d.text_name}: from token {d.position} on {list(d.ours)} {list(d.our_pieces)}, "
        f"reference {list(d.theirs)} {list(d.their_pieces)}"
    )


def logit_lines(prompts: Sequence[str], judged: Sequence[JudgedAnswer]) -> list[str]:
    """The report for people."""
    lines = []
    for index, answer in differing(judged):
        comparison = answer.comparison
        lines.append(f"{prompts[index]!r}: {comparison.verdict}")
        first, *rest = comparison.differences
        lines.append("  " + difference_line(first, answer.pieces))
        worse = [d for d in rest if d.verdict == "different" and first.verdict != "different"]
        lines += ["  " + difference_line(d, answer.pieces) for d in worse[:1]]
        if rest:
            lines.append(f"  and at {len(rest)} more of {comparison.num_rows} tokens")
    counts = Counter(j.comparison.verdict for j in judged)
    lines.append(
        f"{len(judged)} answers: "
        + ", ".join(f"{counts[v]} {v}" for v in ("same", "near-tie", "different"))
    )
    for name, values in summaries([j.comparison for j in judged]).items():
        lines.append(f"KL {name}: mean {values['mean']:.2e}, largest {values['largest']:.2e} nats")
    mean_kl = float(np.concatenate([j.comparison.our_kl for j in judged]).mean())
    if mean_kl > _LARGE_KL:
        lines.append(
            f"the model is {mean_kl:.2f} nats from fp32, more than a 4-bit quantisation costs: "
            "with errors so large the verdicts say little"
        )
    return lines


def difference_line(d: RowDifference, pieces: Mapping[int, str]) -> str:
    ours, theirs = (f"{i} {pieces.get(i, '')!r}" for i in (d.ours, d.theirs))
    return (
        f"token {d.position}: {ours} or {theirs}; margins {d.our_margin:+.4f} here, "
        f"{d.their_margin:+.4f} there, {d.exact_margin:+.4f} in fp32; largest logit errors "
        f"{d.our_error:.4f} and {d.their_error:.4f}: {d.verdict}"
    )


def summaries(comparisons: Sequence[Comparison]) -> dict[str, dict[str, float]]:
    """Mean and maximum of each kind of KL divergence over all rows."""

    def summary(parts: Sequence[NDArray[np.float64]]) -> dict[str, float]:
        values = np.concatenate(parts)
        return {"mean": float(values.mean()), "largest": float(values.max())}

    return {
        "of the model from the reference": summary([c.kl for c in comparisons]),
        "of the model from fp32": summary([c.our_kl for c in comparisons]),
        "of the reference from fp32": summary([c.their_kl for c in comparisons]),
    }
