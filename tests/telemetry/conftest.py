"""A store whose clock is ours, in memory and in SQLite; and metrics read back from either exporter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from nightmail import OutboxBroker
from nightmail.observe import Observers
from nightmail.store import FullStore
from nightmail.stores import open_store
from nightmail.telemetry.metrics_observer import MetricsObserver
from nightmail.telemetry.opentelemetry import OpenTelemetryObserver
from nightmail.telemetry.prometheus import PrometheusObserver
from nightmail.testing.clock import ManualClock
from tests.broker.support import Heard, Make
from tests.telemetry.support import Read, Samples, opentelemetry_samples, prometheus_samples


@pytest.fixture
def clock() -> ManualClock:
    """The store's time; it stands still until moved."""
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> FullStore:
    """An empty store of either kind."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'messages.db'}"
    return open_store(url, clock=clock)


@pytest.fixture
def heard() -> Heard:
    """What the engine of `make`'s brokers did."""
    return Heard()


@pytest.fixture(params=["prometheus", "opentelemetry"])
def exporter(request: pytest.FixtureRequest) -> tuple[MetricsObserver, Callable[[], Samples]]:
    """An observer, and what its exporter tells."""
    if request.param == "prometheus":
        registry = CollectorRegistry()
        return PrometheusObserver(registry=registry), lambda: prometheus_samples(registry)
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    return OpenTelemetryObserver(meter_provider=provider), lambda: opentelemetry_samples(reader)


@pytest.fixture
def metrics(exporter: tuple[MetricsObserver, Callable[[], Samples]]) -> MetricsObserver:
    """The observer."""
    return exporter[0]


@pytest.fixture
def read(exporter: tuple[MetricsObserver, Callable[[], Samples]]) -> Read:
    """Reads one metric by the name that Prometheus has for it: its numbers by the values of their labels."""

    def one(name: str) -> dict[tuple[str, ...], float]:
        return {labels: value for (found, labels), value in exporter[1]().items() if found == name}

    return one


@pytest.fixture
def make(store: FullStore, heard: Heard, metrics: MetricsObserver) -> Make:
    """Makes a broker on that store, quiet and measured. What opens the store closes it."""

    def build(**options: Any) -> OutboxBroker:
        return OutboxBroker(
            store, create_tables=True, logger=None, observer=Observers(heard, metrics), **options
        )

    return build
