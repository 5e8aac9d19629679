"""The engine's numbers and the server's own in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from culet.engine.metrics import Counter, EngineMetrics, Gauge, Histogram
from culet.server.state import ServerState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _StateCollector(Collector):
    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield from _engine_families(self._state.model.engine.metrics)
        responses = CounterMetricFamily(
            "culet_http_responses", "responses sent", labels=["route", "status"]
        )
        for (route, status), count in sorted(self._state.responses.items()):
            responses.add_metric([route, str(status)], count)
        yield responses
        yield GaugeMetricFamily(
            "culet_http_open_answers", "answers running or waiting", value=self._state.num_open
        )


def _engine_families(metrics: EngineMetrics) -> Iterator[Metric]:
    for name, metric in metrics.items().items():
        if isinstance(metric, Counter):
            yield CounterMetricFamily(f"culet_{name}", metric.help, value=metric.value)
        elif isinstance(metric, Gauge):
            yield GaugeMetricFamily(f"culet_{name}", metric.help, value=metric.value)
        elif isinstance(metric, Histogram):
            yield _histogram(f"culet_{name}", metric)


def _histogram(name: str, metric: Histogram) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for edge, count in zip(metric.edges, metric.counts, strict=False):
        total += count
        buckets.append((f"{edge:g}", total))
    buckets.append(("+Inf", metric.count))
    return HistogramMetricFamily(name, metric.help, buckets=buckets, sum_value=metric.sum)


def exposition(state: ServerState) -> bytes:
    """All metrics as text."""
    registry = CollectorRegistry()
    registry.register(_StateCollector(state))
    return generate_latest(registry)
