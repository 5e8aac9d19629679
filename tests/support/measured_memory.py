"""What the system counts for a process that loads a model and works with it, beside the plan.

    python measured_memory.py MODEL LOAD_MODE EMBED_WEIGHTS CONTEXT_LENGTH

Run as a process of its own, so that nothing else is in the figures. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

_HEAD = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+\s*(.*)")


def resident_by_kind(model: str) -> Counter[str]:
    """Bytes in RAM: pages of the model's file, of other files (programs), and anonymous ones, which
    are the process's own: of no file, or written to since they were read from one."""
    found: Counter[str] = Counter()
    kind = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = _HEAD.match(line)
        if head is not None:
            name = head[1]
            kind = "model" if name == model else "program"
        elif line.startswith(("Rss:", "Anonymous:")):
            field, number, _ = line.split()
            found[kind if field == "Rss:" else "anonymous"] += int(number) << 10
            found[kind] -= (int(number) << 10) * (field == "Anonymous:")
    return found


class Peak:
    """The most of each kind, looked at every few milliseconds while the block runs."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.most: Counter[str] = Counter()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self.ended.wait(0.02):
            self._look()

    def _look(self) -> None:
        now = resident_by_kind(self.model)
        now["all"] = now["model"] + now["program"] + now["anonymous"]
        self.most |= now

    def __enter__(self) -> Peak:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()
        self._look()


def main() -> None:
    path, load_mode, embed_weights, context_length = sys.argv[1:]
    import culet

    options: dict[str, Any] = {"load_mode": load_mode, "embed_weights": embed_weights}
    tokens = int(context_length)
    with culet.load(path, context_length=tokens, max_seqs=1, threads=2, **options) as llm:
        with Peak(os.path.realpath(path)) as peak:
            # Prompts that fill the context but for a short answer, so that K and V are used; two,
            # so that the second finds all of a mapped file in RAM; and a chat for its template.
            for text in ("a b c d ", "1 2 3 4 "):
                ids = llm.tokenizer.encode(text * tokens)[: tokens - 16]
                prompt = llm.tokenizer.decode(ids)
                llm.generate(prompt, max_tokens=8, ignore_eos=True, temperature=1.0)
            llm.chat([{"role": "user", "content": "a b c"}], max_tokens=4, ignore_eos=True)
        report = llm.memory()
        print(
            json.dumps(
                {
                    "most": peak.most,
                    "groups": {
                        g.name: [g.planned_bytes, g.actual_bytes, g.mapped_bytes]
                        for g in report.groups
                    },
                    "by_row": sum(g.by_row_bytes for g in report.groups),
                    "planned": report.planned_bytes,
                    "planned_resident": report.planned_resident_bytes,
                }
            )
        )


if __name__ == "__main__":
    main()
