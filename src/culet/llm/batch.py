"""Many prompts at once: submitted as the queue takes them, answers in order, progress shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from culet.engine.handle import Delta
from culet.llm.progress import PatientProgress
from culet.llm.results import Completion
from culet.llm.text import Started


def run_batch(
    texts: Sequence[str],
    start: Callable[[str], Started],
    complete: Callable[[Started, Sequence[Delta]], Completion],
    max_pending: int,
) -> list[Completion]:
    """All choices of all texts, in order.

    Args:
        start: submits a text.
        complete: makes a completion of all deltas of one choice.
        max_pending: requests that may be submitted and not yet read.

    Raises what `start` or a request raises; then everything else is cancelled.
    """
    pending: deque[Started] = deque()
    answers: list[Completion] = []
    progress = PatientProgress("generating", len(texts))
    try:
        for index, text in enumerate(texts):
            pending.append(start(text))
            while pending and (len(pending) >= max_pending or index + 1 == len(texts)):
                answers += _answers(pending[0], complete, progress)
                pending.popleft()
    finally:
        progress.close()
        for started in pending:
            started.handle.cancel()
    return answers


def _answers(
    started: Started,
    complete: Callable[[Started, Sequence[Delta]], Completion],
    progress: PatientProgress,
) -> list[Completion]:
    found: list[list[Delta]] = [[] for _ in range(started.handle.num_choices)]
    for delta in started.handle:
        found[delta.choice].append(delta)
        progress.tick()
    progress.advance()
    return [complete(started, deltas) for deltas in found]
