#!/usr/bin/env python
"""Trains, evaluates and exports the built-in model; see docs/builtin-model.md.

python scripts/train_builtin.py train --out DIR     about 2 hours on two cores, resumable
python scripts/train_builtin.py evaluate --out DIR  the table of results
python scripts/train_builtin.py export --out DIR    HF folder, GGUF files, goldens, document
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training import commands


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=sorted(commands.COMMANDS))
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--stages", type=int, nargs=3, default=commands.STAGES, help="steps of each stage"
    )
    parser.add_argument("--threads", type=int, default=2)
    return commands.run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
