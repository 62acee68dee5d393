"""The dashboard asks only for metrics that there are, and the page in the docs tells of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from nightmail.controls import PauseCause, QueueStatus
from nightmail.message import Delivery
from nightmail.outcome import Dead
from nightmail.store import Settlement
from nightmail.telemetry.metrics import HISTOGRAMS, NUMBERS
from nightmail.telemetry.metrics_observer import MetricsObserver
from nightmail.telemetry.opentelemetry import OpenTelemetryObserver
from nightmail.telemetry.prometheus import PrometheusObserver
from tests.telemetry.support import opentelemetry_samples, prometheus_samples
from tests.unit.support import delivery

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "nightmail.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES: list[str] = [target["expr"] for panel in PANELS for target in panel["targets"]]


def tell_everything(metrics: MetricsObserver, told: Delivery) -> None:
    """Something of every kind, so that every metric has a number."""
    metrics.published("mail", 1)
    metrics.claimed([told])
    metrics.started(told)
    metrics.ended([told], 0.1)
    metrics.settled([Settlement(told, Dead("rejected"))])
    metrics.counted([QueueStatus(queue="mail", ready=1)])
    metrics.paused("mail", PauseCause.HANDLER, "host/1", None, None)
    metrics.resumed("mail", "host/1")


def exported_by_prometheus() -> set[str]:
    registry = CollectorRegistry()
    tell_everything(PrometheusObserver(registry=registry), delivery())
    return {name for name, _ in prometheus_samples(registry)}


def exported_by_opentelemetry() -> set[str]:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    tell_everything(OpenTelemetryObserver(meter_provider=provider), delivery())
    return {name for name, _ in opentelemetry_samples(reader)}


EXPORTED = exported_by_prometheus()


def asked_for(text: str) -> set[str]:
    """The metrics that a query names."""
    return set(re.findall(r"\bnightmail_\w+", text))


def test_both_exporters_tell_the_same() -> None:
    assert exported_by_opentelemetry() == EXPORTED


@pytest.mark.parametrize("query", QUERIES)
def test_every_metric_in_the_dashboard_exists(query: str) -> None:
    assert asked_for(query)
    assert asked_for(query) <= EXPORTED


@pytest.mark.parametrize("query", QUERIES)
def test_every_label_in_the_dashboard_exists(query: str) -> None:
    by_name = {metric.prometheus_name: set(metric.labels) for metric in (*NUMBERS, *HISTOGRAMS)}
    for name, selector in re.findall(r"\b(nightmail_\w+?)(?:_total|_bucket)?\b\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)=", selector)) <= by_name[name]


def test_the_dashboard_can_be_imported_anywhere() -> None:
    variables = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    ids = [panel["id"] for panel in DASHBOARD["panels"]]

    assert variables == {"datasource": "datasource", "queue": "query"}
    assert "id" not in DASHBOARD
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    assert asked_for(json.dumps(DASHBOARD["templating"])) <= EXPORTED
    assert len(set(ids)) == len(ids)
    places = [tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)


def test_every_metric_is_somewhere_on_the_dashboard() -> None:
    shown = {re.sub("_(total|bucket)$", "", name) for query in QUERIES for name in asked_for(query)}

    assert shown == {metric.prometheus_name for metric in (*NUMBERS, *HISTOGRAMS)}


def test_the_page_tells_of_every_metric_and_its_labels() -> None:
    page = (DOCS / "telemetry.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(nightmail_\w+)` \|([^|]*)\|", page, re.MULTILINE))

    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows.items()} == {
        **{
            metric.prometheus_name + ("_total" if metric.kind == "counter" else ""): set(metric.labels)
            for metric in NUMBERS
        },
        **{metric.prometheus_name: set(metric.labels) for metric in HISTOGRAMS},
    }


def test_every_alert_on_the_page_asks_for_what_exists() -> None:
    page = (DOCS / "telemetry.md").read_text("utf-8")
    alerts = re.findall(r"^ +expr: (.*)$", page, re.MULTILINE)

    assert len(alerts) >= 9
    for alert in alerts:
        assert asked_for(alert)
        assert asked_for(alert) <= EXPORTED
