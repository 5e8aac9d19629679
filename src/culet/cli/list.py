"""`culet list`: the models in the Hugging Face cache."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime

from culet.cli.output import format_bytes, print_json
from culet.hub.store import cache_folder, stored_models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    models = stored_models()
    if args.json:
        print_json(
            {
                "models": [
                    {
                        "name": m.name,
                        "path": str(m.path),
                        "bytes": m.num_bytes,
                        "last_used": m.last_used,
                    }
                    for m in models
                ]
            }
        )
        return 0
    if not models:
        print(
            f"no models in {cache_folder()}; `culet pull OWNER/REPO` fetches one", file=sys.stderr
        )
    width = max((len(m.name) for m in models), default=0)
    for m in models:
        used = datetime.fromtimestamp(m.last_used).strftime("%Y-%m-%d")
        print(f"{m.name:<{width}}  {format_bytes(m.num_bytes):>10}  last used {used}")
    return 0
