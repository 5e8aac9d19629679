"""Markdown that arrives piece by piece, in a terminal.

Finished blocks are printed for good and scroll away; only the block that is still growing is drawn
again and again. Where the output is no terminal, text goes out as it is.
"""

from __future__ import annotations

import re
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

_FENCE = re.compile(r"^\s*(```+|~~~+)", re.MULTILINE)
_REFRESHES_PER_SECOND = 12


class MarkdownStream:
    """Use in a `with` block; `write` takes text cut anywhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tail = ""
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                transient=True,
                refresh_per_second=_REFRESHES_PER_SECOND,
                vertical_overflow="ellipsis",
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        if self._live is not None:
            self._live.stop()
        else:
            self._console.file.write("\n")

    def write(self, text: str) -> None:
        """More of the answer."""
        if self._live is None:
            self._console.file.write(text)
            self._console.file.flush()
            return
        self._tail += text
        finished, self._tail = split_blocks(self._tail)
        if finished:
            self._console.print(Markdown(finished))
        self._live.update(Markdown(self._tail))

    def write_thought(self, text: str) -> None:
        """More of the thought, which is shown dim and as it is."""
        if self._live is None:
            return  # who reads a pipe wants the answer
        self._tail += text
        finished, _, rest = self._tail.rpartition("\n")
        if finished:
            self._console.print(Text(finished, style="dim italic"))
            self._tail = rest
        self._live.update(Text(self._tail, style="dim italic"))

    def end_thought(self) -> None:
        """What follows is the answer."""
        if self._live is not None:
            self._console.print(Text(self._tail + "\n", style="dim italic"))
            self._tail = ""

    def interrupt(self) -> None:
        """Say that the answer was stopped."""
        self._flush()
        if self._live is not None:
            self._console.print(Text("(stopped)", style="dim"))

    def _flush(self) -> None:
        if self._live is not None:
            if self._tail.strip():
                self._console.print(Markdown(self._tail))
            self._tail = ""
            self._live.update(Text(""))


def split_blocks(text: str) -> tuple[str, str]:
    """Text up to the last blank line outside a code fence, and the rest."""
    end = len(text)
    while (end := text.rfind("\n\n", 0, end)) >= 0:
        if _is_outside_fence(text[:end]):
            return text[: end + 2], text[end + 2 :]
    return "", text


def _is_outside_fence(text: str) -> bool:
    opened = ""
    for match in _FENCE.finditer(text):
        marks = match.group(1)
        if not opened:
            opened = marks
        elif marks.startswith(opened):
            opened = ""
    return not opened
