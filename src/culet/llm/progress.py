"""A bar on a terminal's standard error, for what turns out to take a while."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    # Imported with the first bar: a tenth of what every start would take.
    from rich.progress import Progress

PATIENCE_SECONDS = 1.0


class PatientProgress:
    """Shows itself only on a terminal, and only after `PATIENCE_SECONDS`. Use in a `with` block."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = total
        self._done = 0
        self._due = time.monotonic() + PATIENCE_SECONDS
        self._bar: Progress | None = None
        self._is_wanted = total > 1 and sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tick(self) -> None:
        """Something has happened."""
        if self._is_wanted and self._bar is None and time.monotonic() >= self._due:
            from rich.console import Console
            from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

            self._bar = Progress(
                *Progress.get_default_columns()[:2],
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._bar.add_task(self._label, total=self._total, completed=self._done)

    def advance(self) -> None:
        """One more of the total is done."""
        self._done += 1
        self.tick()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
