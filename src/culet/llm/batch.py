"""Many prompts at once: submitted as the queue takes them, answers in order, progress shown."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from culet.engine.handle import Delta
from culet.llm.results import Completion
from culet.llm.text import Started

# A batch that takes longer than this shows how far it is.
_PATIENCE_SECONDS = 2.0


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
    progress = _Progress(len(texts))
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
    progress: _Progress,
) -> list[Completion]:
    found: list[list[Delta]] = [[] for _ in range(started.handle.num_choices)]
    for delta in started.handle:
        found[delta.choice].append(delta)
        progress.tick()
    progress.advance()
    return [complete(started, deltas) for deltas in found]


class _Progress:
    """A bar on a terminal's standard error, once the batch has taken a while."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._due = time.monotonic() + _PATIENCE_SECONDS
        self._bar: Progress | None = None
        self._is_wanted = total > 1 and sys.stderr.isatty()

    def tick(self) -> None:
        """Something has happened."""
        if self._is_wanted and self._bar is None and time.monotonic() >= self._due:
            self._bar = Progress(
                *Progress.get_default_columns()[:2],
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._bar.add_task("generating", total=self._total, completed=self._done)

    def advance(self) -> None:
        """One more text is answered."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
