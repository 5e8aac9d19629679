"""Stop strings in text that arrives piece by piece. Knows neither tokens nor thoughts."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Lets text through until one of `stops` begins; no part of a match is ever let through.

    Of several matches the one that begins first counts, and what is let through does not depend on
    how the text was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [s for s in stops if s]
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is certain not to belong to a stop; nothing after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at, len(s), s) for s in self._stops if (at := text.find(s)) >= 0]
        # A stop that begins earlier may still be incomplete at the end of the text.
        pending = self._pending_start(text)
        if found and min(found)[0] <= pending:
            at, _, self.matched = min(found)
            self._held = ""
            return text[:at]
        self._held = text[pending:]
        return text[:pending]

    def finish(self) -> str:
        """What was held back, once nothing follows; cut at a complete match within it."""
        text, self._held = self._held, ""
        if self.matched is not None:
            return ""
        found = [(at, len(s), s) for s in self._stops if (at := text.find(s)) >= 0]
        if found:
            at, _, self.matched = min(found)
            return text[:at]
        return text

    def _pending_start(self, text: str) -> int:
        """Where the earliest stop begins that the next text could complete."""
        longest = max(map(len, self._stops)) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            tail = text[start:]
            if any(len(s) > len(tail) and s.startswith(tail) for s in self._stops):
                return start
        return len(text)
