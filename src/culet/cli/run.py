"""`culet run`: one answer to standard output, streamed when a person reads it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import culet
from culet import system
from culet.cli.options import (
    add_engine_options,
    add_model_argument,
    add_sampling_options,
    load_options,
    resolve_model,
    sampling_options,
)
from culet.cli.output import format_bytes, print_json
from culet.errors import UsageError
from culet.llm.facade import LLM
from culet.llm.results import ChatCompletion, Completion, Piece


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser, has_default=True)
    parser.add_argument(
        "-p", "--prompt", metavar="TEXT", help="the prompt; `-` or nothing reads standard input"
    )
    parser.add_argument("--raw", action="store_true", help="go on with the text, no chat template")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--think", action="store_true", help="let the model think first")
    parser.add_argument("--stats", action="store_true", help="times and memory on standard error")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the text")
    add_sampling_options(parser, max_tokens=256)
    add_engine_options(parser, has_template=True)


def run(args: argparse.Namespace) -> int:
    if args.raw and args.system is not None:
        raise UsageError("--system goes with chat, not with --raw (put the text into the prompt)")
    path = resolve_model(args.model)
    text = read_prompt(args.prompt)
    clock = Clock()
    with culet.load(path, max_seqs=1, **load_options(args)) as llm:
        clock.loaded()
        completion = write_answer(answer(llm, text, args), clock, quiet=args.json)
        if args.json:
            print_json(as_json(completion, str(path)))
        if args.stats:
            print(clock.report(completion), file=sys.stderr)
    return 0


def read_prompt(given: str | None) -> str:
    """The prompt: as given, or all of standard input."""
    if given is not None and given != "-":
        return given
    if sys.stdin.isatty():
        print("culet: reading the prompt from standard input, end with Ctrl-D", file=sys.stderr)
    raw = sys.stdin.buffer.read()
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 (byte {error.start})") from error
    if not text.strip():
        raise UsageError("the prompt is empty (give -p TEXT, or text on standard input)")
    return text


def answer(llm: LLM, text: str, args: argparse.Namespace) -> Iterator[Piece]:
    """Start generating."""
    options = sampling_options(args)
    if args.raw:
        return llm.generate(text, stream=True, **options)
    messages = [{"role": "system", "content": args.system}] if args.system is not None else []
    messages.append({"role": "user", "content": text})
    return llm.chat(messages, stream=True, enable_thinking=args.think, **options)


def write_answer(
    pieces: Iterator[Piece], clock: Clock, *, quiet: bool
) -> Completion | ChatCompletion:
    """Write pieces as they come: the answer to standard output, thoughts to standard error."""
    completion: Completion | ChatCompletion | None = None
    is_thinking = False
    for piece in pieces:
        clock.piece()
        completion = piece.completion or completion
        if not quiet:
            if piece.reasoning:
                sys.stderr.write(piece.reasoning)
                sys.stderr.flush()
                is_thinking = True
            if piece.text and is_thinking:
                sys.stderr.write("\n")  # on a terminal both streams are one text
                sys.stderr.flush()
                is_thinking = False
            sys.stdout.write(piece.text)
            sys.stdout.flush()
    assert completion is not None
    if not quiet and not completion.text.endswith("\n"):
        sys.stdout.write("\n")
    return completion


class Clock:
    """Wall times of one run."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._loaded = self._start
        self._first: float | None = None
        self._last = self._start

    def loaded(self) -> None:
        self._loaded = time.perf_counter()

    def piece(self) -> None:
        self._last = time.perf_counter()
        if self._first is None:
            self._first = self._last

    def report(self, completion: Completion | ChatCompletion) -> str:
        usage = completion.usage
        first = self._last if self._first is None else self._first
        parts = [
            f"load {self._loaded - self._start:.2f} s",
            f"prompt {usage.prompt_tokens} tokens in {first - self._loaded:.2f} s",
        ]
        if usage.completion_tokens > 1 and self._last > first:
            speed = (usage.completion_tokens - 1) / (self._last - first)
            parts.append(f"answer {usage.completion_tokens} tokens at {speed:.1f} tokens/s")
        peak = system.peak_resident_bytes()
        if peak is not None:
            parts.append(f"peak memory {format_bytes(peak)}")
        return "culet: " + ", ".join(parts)


def as_json(completion: Completion | ChatCompletion, model: str) -> dict[str, Any]:
    """The object for scripts."""
    fields = asdict(completion)
    fields["usage"]["total_tokens"] = completion.usage.total_tokens
    return {"model": model, **fields}
