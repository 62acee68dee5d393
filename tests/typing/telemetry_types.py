"""The types of what measures and watches. Nothing here runs: mypy reads it."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import assert_type

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider
from prometheus_client import CollectorRegistry

from nightmail import OutboxBroker, OutboxRouter
from nightmail.broker.opentelemetry import OutboxTelemetryMiddleware
from nightmail.broker.prometheus import OutboxPrometheusMiddleware
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.telemetry import QueueWatch
from nightmail.telemetry.opentelemetry import OpenTelemetryObserver
from nightmail.telemetry.prometheus import PrometheusObserver


async def watching(
    broker: OutboxBroker, registry: CollectorRegistry, meters: MeterProvider, tracers: TracerProvider
) -> None:
    counting = PrometheusObserver(registry=registry)
    assert_type(counting, PrometheusObserver)
    metering = OpenTelemetryObserver(meter_provider=meters)
    assert_type(metering, OpenTelemetryObserver)
    both = Observers(LoggingObserver(logging.getLogger("shop")), counting, metering)
    assert_type(both, Observers)
    each: list[Observer] = [counting, metering, both]
    for observer in each:
        OutboxBroker(observer=observer)

    watch = QueueWatch(broker.store, counting, every=60)
    assert_type(watch, QueueWatch)
    assert_type(await watch.start(), None)
    assert_type(await watch.look(), None)
    assert_type(await watch.stop(), None)

    spans = OutboxTelemetryMiddleware(tracer_provider=tracers, link_after=timedelta(minutes=5))
    assert_type(spans, OutboxTelemetryMiddleware)
    metrics = OutboxPrometheusMiddleware(registry=registry, app_name="shop", custom_labels={"a": "b"})
    assert_type(metrics, OutboxPrometheusMiddleware)
    OutboxBroker(middlewares=[spans, metrics])
    OutboxRouter(middlewares=[spans, metrics])
