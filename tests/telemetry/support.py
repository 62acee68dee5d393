"""Metrics read back as Prometheus would have them, from either exporter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    NumberDataPoint,
    Sum,
)
from prometheus_client import CollectorRegistry

from nightmail import OutboxBroker
from nightmail.store import FullStore
from tests.broker.support import started

Samples = dict[tuple[str, tuple[str, ...]], float]
"""A metric's name and the values of its labels, in the order of their names; and the number."""
Read = Callable[[str], dict[tuple[str, ...], float]]


def prometheus_samples(registry: CollectorRegistry) -> Samples:
    """Everything in a registry."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def opentelemetry_samples(reader: InMemoryMetricReader) -> Samples:
    """Everything that a reader collects now, under the names that OpenTelemetry's own translation gives."""
    collected = reader.get_metrics_data()
    metrics = (
        metric
        for resource in (collected.resource_metrics if collected else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    )
    return {key: value for metric in metrics for key, value in _translated(metric).items()}


def _translated(metric: Metric) -> Samples:
    name = metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")
    if isinstance(metric.data, Sum) and metric.data.is_monotonic:
        name += "_total"
    samples: Samples = {}
    for point in metric.data.data_points:
        labels = {key: str(value) for key, value in (point.attributes or {}).items()}
        if isinstance(point, NumberDataPoint):
            samples[name, _values(labels)] = point.value
        elif isinstance(point, HistogramDataPoint):
            samples[f"{name}_count", _values(labels)] = point.count
            samples[f"{name}_sum", _values(labels)] = point.sum
            upto = 0
            bounds = [*map(str, map(float, point.explicit_bounds)), "+Inf"]
            for bound, count in zip(bounds, point.bucket_counts, strict=True):
                upto += count
                samples[f"{name}_bucket", _values(labels | {"le": bound})] = upto
    return samples


def happened(numbers: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """Without what has not happened yet."""
    return {labels: value for labels, value in numbers.items() if value}


def _values(labels: dict[str, str]) -> tuple[str, ...]:
    return tuple(value for _, value in sorted(labels.items()))


@asynccontextmanager
async def opened(store: FullStore) -> AsyncIterator[FullStore]:
    """The store, which is ours to close."""
    await store.open()
    await store.migrate()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def running(broker: OutboxBroker) -> AsyncIterator[OutboxBroker]:
    """The broker with its subscribers, on an open store."""
    async with opened(broker.store), started(broker):
        yield broker
