"""A rendered prompt that remembers which characters may spell control tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class ControlSpelling:
    """How a vocabulary spells its control tokens."""

    bos: str
    eos: str
    all: frozenset[str]


@dataclass(frozen=True)
class Segment:
    """Part of a prompt; control tokens are recognised only inside trusted segments."""

    text: str
    is_trusted: bool


@dataclass(frozen=True)
class Prompt:
    """Segments in order; neighbours always differ in trust and none is empty."""

    segments: tuple[Segment, ...]

    @classmethod
    def join(cls, parts: Iterable[tuple[str, bool]]) -> Prompt:
        """A prompt of (text, is_trusted) parts; empty parts vanish, equal neighbours unite."""
        segments: list[Segment] = []
        for text, is_trusted in parts:
            if not text:
                continue
            if segments and segments[-1].is_trusted == is_trusted:
                text = segments.pop().text + text
            segments.append(Segment(text, is_trusted))
        return cls(tuple(segments))

    @property
    def text(self) -> str:
        """The whole prompt as characters."""
        return "".join(s.text for s in self.segments)
