"""Counters and histograms of an engine, as plain numbers that a server can expose.

One thread (the engine's) writes; others may read at any time and see a value that was true a moment
ago. Knows no clock and no wire format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

# Upper edges in seconds: from a toy's decode step to a long prompt on a slow machine.
_SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(slots=True)
class Counter:
    """A number that only grows."""

    help: str
    value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount


@dataclass(slots=True)
class Gauge:
    """A number as it is now."""

    help: str
    value: float = 0


class Histogram:
    """How often values fell between fixed edges.

    Attributes:
        edges: upper edges (inclusive) of all buckets but the last, ascending.
        counts: per bucket, not cumulated; one more than edges.
        sum: of all values.
    """

    __slots__ = ("counts", "edges", "help", "sum")

    def __init__(self, help: str, edges: Sequence[float]) -> None:
        self.help = help
        self.edges = tuple(edges)
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """0 without values."""
        return self.sum / self.count if self.count else 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value


def _seconds(help: str) -> Histogram:
    return field(default_factory=lambda: Histogram(help, _SECONDS))


def _count(help: str) -> Counter:
    return field(default_factory=lambda: Counter(help))


def _gauge(help: str) -> Gauge:
    return field(default_factory=lambda: Gauge(help))


@dataclass(slots=True)
class EngineMetrics:
    """Everything that an engine counts; the names are those of /metrics without their prefix."""

    requests: Counter = _count("requests submitted")
    requests_refused: Counter = _count("requests refused because of limits")
    requests_finished: Counter = _count("requests that ended by themselves")
    requests_cancelled: Counter = _count("requests cancelled or out of time")
    requests_failed: Counter = _count("requests that ended with an error")
    prompt_tokens: Counter = _count("prompt tokens computed, recomputed ones included")
    cached_tokens: Counter = _count("prompt tokens taken from the prefix cache")
    generated_tokens: Counter = _count("tokens sampled")
    full_rows: Counter = _count("rows that went through all layers")
    preemptions: Counter = _count("sequences sent back to the queue for lack of pages")
    steps: Counter = _count("steps run")
    model_seconds: Counter = _count("time in steps that the model computed")
    running: Gauge = _gauge("sequences running")
    waiting: Gauge = _gauge("sequences waiting")
    full_pages_used: Gauge = _gauge("pages of full layers in use, the prefix cache's included")
    sliding_pages_used: Gauge = _gauge("pages of sliding layers in use, likewise")
    cached_points: Gauge = _gauge("places that the prefix cache can continue from")
    queue_seconds: Histogram = _seconds("time from submission to the first step")
    first_token_seconds: Histogram = _seconds("time from submission to the first token")
    inter_token_seconds: Histogram = _seconds("time between two tokens of a choice")
    request_seconds: Histogram = _seconds("time from submission to the end")
    step_seconds: Histogram = _seconds("time of a step")
    step_rows: Histogram = field(default_factory=lambda: Histogram("rows of a step", _ROWS))

    def items(self) -> dict[str, Counter | Gauge | Histogram]:
        """All metrics by name, in order."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
