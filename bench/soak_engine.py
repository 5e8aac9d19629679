"""Random requests and cancellations for a long time: nothing may grow and nothing may be lost.

    python bench/soak_engine.py MODEL [--minutes 30] [--backend cpu]

Some callers submit, iterate, cancel, stop early, ask for several choices or for every row of the
prompt; a tenth of the prompts are ones that were asked before. After a warm-up of 1,000 requests,
which fill the prefix cache and the heaps, resident memory must stay within 2% and the numbers of
threads and open files must not grow.
Greedy requests that were asked twice must have had the same answer. Prints one JSON line; exit
status 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from statistics import median

import culet
from culet import system
from culet.engine.engine import Engine
from culet.engine.request import EnginePrompt, SamplingParams
from culet.errors import CapacityError

GROWTH_ALLOWED = 0.02
WARM_REQUESTS = 1000
CALLERS = 8


class Callers:
    """Threads that use an engine in every way, until told to end."""

    def __init__(self, engine: Engine, num_ids: int, longest: int, seed: int) -> None:
        self.engine = engine
        self.faults: list[str] = []
        self.num_requests = 0
        self._num_ids = num_ids
        self._longest = longest
        self._asked: dict[tuple[int, ...], list[int]] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=(random.Random(seed + i),))
            for i in range(CALLERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _call(self, rng: random.Random) -> None:
        try:
            while not self._is_over.is_set():
                self._one(rng)
        except Exception as error:
            self.faults.append(repr(error))

    def _one(self, rng: random.Random) -> None:
        prompt = self._prompt(rng)
        kind = rng.randrange(6)
        params = SamplingParams(
            max_tokens=rng.randint(1, self._longest // 4),
            temperature=0.0 if kind < 2 else 1.0,
            n=3 if kind == 3 else 1,
            prompt_logprobs=1 if kind == 4 else None,
            ignore_eos=True,
        )
        try:
            handle = self.engine.submit(EnginePrompt(prompt), params)
        except CapacityError:
            time.sleep(0.01)
            return
        self.num_requests += 1
        if kind == 5:
            for _ in zip(range(rng.randint(0, 20)), handle, strict=False):
                pass
            handle.cancel() if rng.random() < 0.5 else handle.stop()
            handle.result()
        elif kind < 2:
            self._compare(prompt, handle.result()[0].token_ids)
        else:
            handle.result()

    def _prompt(self, rng: random.Random) -> tuple[int, ...]:
        with self._lock:
            if self._asked and rng.random() < 0.1:
                return rng.choice(list(self._asked))
        length = rng.randint(1, self._longest // 2)
        return tuple(rng.randrange(self._num_ids) for _ in range(length))

    def _compare(self, prompt: tuple[int, ...], tokens: list[int]) -> None:
        with self._lock:
            before = self._asked.setdefault(prompt, tokens)
            if len(self._asked) > 200:  # a bounded memory of what was asked
                self._asked.pop(next(iter(self._asked)))
        shared = min(len(before), len(tokens))
        if before[:shared] != tokens[:shared]:
            self.faults.append(f"two answers to one prompt of {len(prompt)} tokens")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0, help="after the warm-up")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with culet.load(args.model, backend=args.backend, context_length=args.ctx) as llm:
        callers = Callers(llm.engine, llm.tokenizer.vocab_size, args.ctx, args.seed)
        callers.start()
        while callers.num_requests < WARM_REQUESTS and not callers.faults:
            time.sleep(0.1)
        samples: list[tuple[int, int, int]] = []
        end = time.monotonic() + 60 * args.minutes
        while time.monotonic() < end and not callers.faults:
            time.sleep(min(1.0, args.minutes))
            files = len(os.listdir("/proc/self/fd"))
            samples.append((system.resident_bytes() or 0, threading.active_count(), files))
        callers.end()
        llm.engine.clear_prefix_cache()
        lost = {k: pool.num_used for k, pool in llm.engine.cache.pages.pools.items()}
        metrics = llm.engine.metrics
    tenth = max(1, len(samples) // 10)
    first, last = (
        [median(column) for column in zip(*part, strict=True)]
        for part in (samples[:tenth], samples[-tenth:])
    )
    faults = list(callers.faults)
    if last[0] > first[0] * (1 + GROWTH_ALLOWED):
        faults.append(f"resident memory grew from {first[0]} to {last[0]} bytes")
    if last[1] > first[1] or last[2] > first[2]:
        faults.append(f"threads or files grew from {first[1:]} to {last[1:]}")
    if any(lost.values()):
        faults.append(f"pages were lost: {lost}")
    print(
        json.dumps(
            {
                "what": "engine soak",
                "minutes": args.minutes,
                "requests": callers.num_requests,
                "tokens": metrics.generated_tokens.value,
                "cancelled": metrics.requests_cancelled.value,
                "preemptions": metrics.preemptions.value,
                "cached_tokens": metrics.cached_tokens.value,
                "resident_bytes": [first[0], last[0]],
                "faults": faults,
            }
        )
    )
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
