"""`culet`: a table of subcommands, each imported only when it is called."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import culet
from culet.errors import CuletError, UsageError

# name -> (module with `add_arguments(parser)` and `run(args) -> int`, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("culet.cli.serve", "the API that your tools speak, and a chat page"),
    "chat": ("culet.cli.chat", "talk to a model in the terminal"),
    "run": ("culet.cli.run", "one answer to standard output"),
    "inspect": ("culet.cli.inspect", "what is in a model file: metadata, tensors, layers, bytes"),
    "bench": ("culet.cli.bench", "prefill, decode, batched decode, load time and memory"),
    "check": ("culet.cli.check", "would these files be served? one line each"),
    "compare": ("culet.cli.compare", "token ids or logits against a reference"),
    "eval": ("culet.cli.eval", "perplexity, multiple choice"),
    "pack": ("culet.cli.pack", "write the packed file of a model, which starts at once"),
    "unpack": ("culet.cli.unpack", "turn a packed file back into the GGUF file, bit for bit"),
    "pull": ("culet.cli.pull", "fetch a model from the Hugging Face hub"),
    "list": ("culet.cli.list", "the models in the Hugging Face cache"),
    "rm": ("culet.cli.rm", "remove models from the Hugging Face cache"),
}

_INTERRUPTED = 130  # what shells expect of a program ended by Ctrl-C
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; only the chosen subcommand's module is imported for its arguments."""
    parser = argparse.ArgumentParser(
        prog="culet",
        description="Runs Google's Gemma models on the machine you already have.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    add_verbose(parser, default=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            importlib.import_module(module).add_arguments(sub)
            # Without a default of its own it leaves what was said before the command.
            add_verbose(sub, default=argparse.SUPPRESS)
            sub.set_defaults(parser=sub)
    return parser


def add_verbose(parser: argparse.ArgumentParser, default: object) -> None:
    parser.add_argument(
        "-v", "--verbose", action="store_true", default=default, help="say more on standard error"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (0 done, 1 failed, 2 wrong usage, 3 bad model).

    Errors made on purpose, and what the system does to a program, become one line and a code.
    """
    fill_standard_streams()
    try:
        return run_to_code(argv)
    finally:
        discard_unwritten_log()


def run_to_code(argv: Sequence[str] | None) -> int:
    """Run one command; what it raises on purpose and what the system does to it become a code."""
    try:
        try:
            code = run_words(list(sys.argv[1:] if argv is None else argv))
        except SystemExit:  # argparse has printed help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return code
    except CuletError as error:
        print(f"culet: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("culet: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`culet run | head`); that is not a failure.
        discard_output()
        return 0
    except OSError as error:
        if error.filename is None and error.errno in _OUTPUT_ERRORS:
            discard_output()
            print(f"culet: the output can't be written ({error.strerror})", file=sys.stderr)
        else:
            logging.getLogger("culet").debug("unexpected", exc_info=error)
            print(f"culet: {error}", file=sys.stderr)
        return CuletError.exit_code
    except MemoryError:
        print("culet: out of memory", file=sys.stderr)
        return CuletError.exit_code


def run_words(words: list[str]) -> int:
    """Parse a command line and run what it says."""
    chosen = next((w for w in words if w in COMMANDS), None)
    parser = build_parser(chosen)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        refuse_words(getattr(args, "parser", parser), args, unknown)
    if args.version:
        print(culet.__version__)
        return 0
    if args.command is None:
        parser.print_help(sys.stderr)
        return UsageError.exit_code
    set_up_log(args.verbose, getattr(args, "log_times", False))
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            # Whatever the locale says: what models read and write is UTF-8. Names of files may
            # hold bytes that are none; those are escaped, as on standard error.
            errors = "replace" if stream is sys.stdin else "backslashreplace"
            stream.reconfigure(encoding="utf-8", errors=errors)
    return int(importlib.import_module(COMMANDS[args.command][0]).run(args))


def refuse_words(
    parser: argparse.ArgumentParser, args: argparse.Namespace, unknown: list[str]
) -> NoReturn:
    """End as argparse does, with the usage of the command and not of all of them."""
    hint = ""
    if args.command == "run" and not unknown[0].startswith("-"):
        hint = " (a prompt goes after -p)"
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def discard_output() -> None:
    """What is still in buffers goes nowhere; the interpreter would complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def discard_unwritten_log() -> None:
    """The same for standard error, where it can't be written: the interpreter would exit with 120,
    whatever the command's own code."""
    try:
        sys.stderr.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def fill_standard_streams() -> None:
    """Open what was closed (`2>&-`, some supervisors): else the next file or socket takes its
    number, and what is printed goes there."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")


class StderrHandler(logging.Handler):
    """Writes to what `sys.stderr` is when a record comes, not when the handler was made."""

    def emit(self, record: logging.LogRecord) -> None:
        # A full disk, a terminal that is gone: no reason to end what the line is about.
        with contextlib.suppress(OSError):
            print(self.format(record), file=sys.stderr, flush=True)


def set_up_log(verbose: bool, has_times: bool = False) -> None:
    """Our own log on standard error; other libraries' stay as they are."""
    handler = StderrHandler()
    line = "%(asctime)s culet: %(message)s" if has_times else "culet: %(message)s"
    handler.setFormatter(logging.Formatter(line, "%Y-%m-%dT%H:%M:%S%z"))
    log = logging.getLogger("culet")
    log.handlers = [handler]  # not one more for each call within a process
    log.setLevel(logging.DEBUG if verbose else logging.INFO)


if __name__ == "__main__":
    raise SystemExit(main())
