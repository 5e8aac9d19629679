"""Decode steps with company: a busy process on one core, or a busy Python thread in the process.

    python bench/neighbours.py MODEL [--steps 40] [--rounds 3] [--threads N]

Rounds of quiet steps, steps beside a process that spins on the first core, and steps beside a
Python thread that spins and holds the interpreter whenever it can. Prints median and 90th
percentile of each, the latter over that of the quiet steps, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median, quantiles

from culet.engine.config import EngineConfig
from culet.engine.measure import Measurement
from culet.formats.opening import open_checkpoint
from culet.llm.loading import load_model
from culet.models.registry import read_config
from culet.ops.select import load_ops

_SPIN = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print("spinning", flush=True)
while True:
    pass
"""


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process keeps the first of our cores busy."""
    process = subprocess.Popen([sys.executable, "-c", _SPIN], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread of this process runs Python code without a pause."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


COMPANY: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "quiet": nullcontext,
    "busy process": busy_process,
    "busy thread": busy_thread,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    checkpoint = open_checkpoint(args.model)
    config = read_config(checkpoint)
    ops = load_ops("cpu", threads=args.threads)
    model = load_model(config, checkpoint, ops, "disk").model
    engine = EngineConfig(context_length=args.steps + 2, max_seqs=1)
    measurement = Measurement(model, ops, engine)
    measurement.decode(args.steps, 1, 1)  # warm-up
    seconds: dict[str, list[float]] = {name: [] for name in COMPANY}
    for _ in range(args.rounds):
        for name, company in COMPANY.items():
            with company():
                seconds[name] += measurement.decode(args.steps, 1, 1)
    quiet = quantiles(seconds["quiet"], n=10)[-1]
    found = {}
    for name, values in seconds.items():
        p90 = quantiles(values, n=10)[-1]
        found[name] = {"median": median(values), "p90": p90, "p90_ratio": p90 / quiet}
        print(
            f"{name:<14} median {median(values) * 1e3:7.2f} ms   p90 {p90 * 1e3:7.2f} ms   "
            f"p90 over the quiet one {p90 / quiet:.2f}"
        )
    print(json.dumps({"model": args.model.name, "threads": args.threads, "steps": found}))


if __name__ == "__main__":
    main()
