"""`culet unpack`: the GGUF file that a packed file was made from, bit for bit."""

from __future__ import annotations

import argparse
from pathlib import Path

from culet.cli.options import add_threads_option
from culet.cli.output import format_bytes, line_printer, print_json
from culet.formats.mapped import explain_lost_pages
from culet.llm.packing import unpack_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="IN.culet", help="a packed file")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="OUT.gguf", required=True, help="the GGUF file to write"
    )
    add_threads_option(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    explain_lost_pages()
    unpack_model(args.path, args.out, args.threads or 0)
    num_bytes = args.out.stat().st_size
    line_printer(args.json)(f"{args.out}: {format_bytes(num_bytes)}")
    if args.json:
        print_json({"path": str(args.out), "bytes": num_bytes})
    return 0
