"""`culet rm`: remove models from the Hugging Face cache."""

from __future__ import annotations

import argparse

from culet.cli.options import reference_or_error
from culet.cli.output import format_bytes, line_printer, print_json
from culet.hub.store import remove


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        metavar="OWNER/REPO[:FILE|QUANT]",
        nargs="+",
        help="a whole repository, or one of its models",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    references = [reference_or_error(name) for name in args.names]
    freed = {str(reference): remove(reference) for reference in references}
    say = line_printer(args.json)
    for name, num_bytes in freed.items():
        say(f"{name}: {format_bytes(num_bytes)} freed")
    if args.json:
        print_json({"freed_bytes": freed})
    return 0
