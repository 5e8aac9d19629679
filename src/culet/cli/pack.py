"""`culet pack`: write the packed file of a model, which starts at once."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from culet.cli.options import add_model_argument, add_threads_option, resolve_model
from culet.cli.output import format_bytes, line_printer, print_json
from culet.llm.conversion import QUANT_TYPES, plan_conversion
from culet.llm.packing import pack_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="OUT.culet",
        required=True,
        help="what is written; its name ends in .culet",
    )
    parser.add_argument(
        "--type",
        choices=QUANT_TYPES,
        help="quantise float matrices (default: keep every type); tables, head and small gates "
        "get at least 6 bits",
    )
    parser.add_argument(
        "--table-type",
        choices=QUANT_TYPES,
        help="another type for tables, head and small gates (default: q8_0 with q8_0, else q6_k)",
    )
    add_threads_option(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    start = time.perf_counter()
    conversion = plan_conversion(args.type, args.table_type)
    result = pack_model(resolve_model(args.model), args.out, args.threads or 0, conversion)
    seconds = time.perf_counter() - start
    say = line_printer(args.json)
    say(
        f"{args.out}: {format_bytes(result.file_bytes)}, {format_bytes(result.served_bytes)} of it "
        f"for serving, in {seconds:.1f} s"
    )
    if not result.is_whole_file_hashed:
        say("unpack will give a GGUF file of these tensors, not the source byte for byte")
    if args.json:
        print_json({"path": str(args.out), "seconds": seconds} | asdict(result))
    return 0
