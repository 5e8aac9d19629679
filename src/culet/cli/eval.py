"""`culet eval`: perplexity of a text, or accuracy on multiple-choice questions."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
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
from culet.evals.scoring import (
    Question,
    perplexity,
    read_questions,
    read_text,
    score_choices,
    summarize,
)
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
        what = "a text, UTF-8" if kind is ppl else "questions, one JSON object a line"
        kind.add_argument("--data", type=Path, metavar="FILE", required=True, help=what)
        kind.add_argument("--json", action="store_true", help="one JSON object on the last line")
    add_engine_options(ppl, context_default=str(_CHUNK_TOKENS))
    add_engine_options(choice)
    ppl.add_argument(
        "--chunks", type=positive_int, metavar="N", help="at most so many (default: all)"
    )


def run(args: argparse.Namespace) -> int:
    if args.kind == "ppl":
        return run_ppl(args, read_text(args.data))
    return run_choice(args, read_questions(args.data))


def load_for(args: argparse.Namespace, num_ctx: int | None) -> LLM:
    options = load_options(args) | {"context_length": num_ctx}
    keeps_prompts = args.kind == "choice"
    return culet.load(resolve_model(args.model), **options, max_seqs=1, prefix_cache=keeps_prompts)


def run_ppl(args: argparse.Namespace, text: str) -> int:
    say = line_printer(args.json)
    num_ctx = args.ctx or _CHUNK_TOKENS
    nats: list[float] = []
    per_chunk = num_ctx - num_ctx // 2 - 1
    with load_for(args, num_ctx) as llm:
        for value in perplexity(llm, text, num_ctx, args.chunks):
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


def run_choice(args: argparse.Namespace, questions: Sequence[Question]) -> int:
    with load_for(args, args.ctx) as llm:
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
