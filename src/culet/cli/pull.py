"""`culet pull`: fetch a model from the Hugging Face hub into its cache."""

from __future__ import annotations

import argparse

from culet.cli.options import reference_or_error
from culet.cli.output import print_json
from culet.hub.store import pull


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="OWNER/REPO[:FILE|QUANT]",
        help="a repository of the hub, such as google/gemma-4-E2B-it; of a repository with several "
        "files, the one named, or the one of a quantisation such as Q4_K_M",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    path = pull(reference_or_error(args.name))
    if args.json:
        print_json({"name": args.name, "path": str(path)})
    else:
        print(path)
    return 0
