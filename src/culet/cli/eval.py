"""`culet eval`: perplexity of a text, or accuracy on multiple-choice questions."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import culet
from culet.cli.options import (
    add_engine_options,
    add_model_argument,
    load_options,
    positive_int,
    resolve_model,
)
from culet.cli.output import line_printer, print_json
from culet.evals.scoring import perplexity, read_questions, read_text, score_choices, summarize
from culet.llm.facade import LLM

_CHUNK_TOKENS = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="ppl|choice", required=True)
    ppl = kinds.add_parser(
        "ppl",
        help="perplexity of a text",
        description="Perplexity as llama-perplexity counts it: chunks of --ctx tokens, BOS first, "
        "second half scored.",
    )
    choice = kinds.add_parser(
        "choice",
        help="accuracy on multiple-choice questions",
        description="JSONL of objects with `prompt`, `choices` and `answer` (an index).",
    )
    for kind in (ppl, choice):
        add_model_argument(kind)
        kind.add_argument("--data", type=Path, metavar="F", required=True)
        add_engine_options(kind)
        kind.add_argument("--json", action="store_true", help="one JSON object on the last line")
    ppl.add_argument("--chunks", type=positive_int, metavar="N", help="at most so many")


def run(args: argparse.Namespace) -> int:
    options = load_options(args)
    if args.kind == "ppl":
        options["context_length"] = args.ctx or _CHUNK_TOKENS
    path, keeps_prompts = resolve_model(args.model), args.kind == "choice"
    with culet.load(path, **options, max_seqs=1, prefix_cache=keeps_prompts) as llm:
        return run_ppl(llm, args) if args.kind == "ppl" else run_choice(llm, args)


def run_ppl(llm: LLM, args: argparse.Namespace) -> int:
    say = line_printer(args.json)
    num_ctx = llm.context_length
    nats: list[float] = []
    per_chunk = num_ctx - num_ctx // 2 - 1
    for value in perplexity(llm, read_text(args.data), num_ctx, args.chunks):
        nats.append(value)
        if len(nats) % per_chunk == 0:
            running = math.exp(sum(nats) / len(nats))
            say(f"chunk {len(nats) // per_chunk}: {running:.4f}")
    found = summarize(nats, num_ctx)
    say(
        f"perplexity {found.value:.4f} +- {found.error:.4f} "
        f"({found.num_scored} tokens of {found.num_chunks} chunks of {num_ctx})"
    )
    if args.json:
        print_json(
            {
                "perplexity": found.value,
                "error": found.error,
                "nats": found.nats,
                "scored_tokens": found.num_scored,
                "chunks": found.num_chunks,
                "context_length": num_ctx,
            }
        )
    return 0


def run_choice(llm: LLM, args: argparse.Namespace) -> int:
    questions = read_questions(args.data)
    scores = [score_choices(llm, question) for question in questions]
    answers = [question.answer for question in questions]
    right = sum(s.picked == a for s, a in zip(scores, answers, strict=True))
    right_by_byte = sum(s.picked_by_byte == a for s, a in zip(scores, answers, strict=True))
    count = len(questions)
    share = right / count
    error = math.sqrt(share * (1 - share) / max(1, count - 1))
    line_printer(args.json)(
        f"{right} of {count} right ({share:.3f} +- {error:.3f}); "
        f"{right_by_byte} by mean log-likelihood of a byte"
    )
    if args.json:
        print_json(
            {
                "questions": count,
                "accuracy": share,
                "error": error,
                "accuracy_by_byte": right_by_byte / count,
                "log_likelihoods": [list(s.log_likelihoods) for s in scores],
            }
        )
    return 0
