"""The metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from nightmail.telemetry.counts import Deliveries, Distribution, Kind
from nightmail.telemetry.metrics import DURATION, HISTOGRAMS, LATENESS, NUMBERS, Histogram, Number
from nightmail.telemetry.metrics_observer import MetricsObserver


class PrometheusObserver(MetricsObserver):
    """Counts events, for scrapes of `registry`. One for each registry and event loop.

    A scrape reads plain numbers and never queries the database. Multiprocess mode is not supported: scrape each process
    on its own port.
    """

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__(_begin)
        registry.register(_Collector(self))


class _Collector(Collector):
    def __init__(self, measured: MetricsObserver) -> None:
        self._measured = measured

    def describe(self) -> list[Family]:
        """Every metric without its numbers, so that a registry knows which names are taken."""
        return [*(_family(metric) for metric in NUMBERS), *(_histogram(metric) for metric in HISTOGRAMS)]

    def collect(self) -> Iterator[Family]:
        """Every metric with its current numbers."""
        for metric in NUMBERS:
            family = _family(metric)
            for labels, value in metric.read(self._measured):
                family.add_metric(labels, value)
            yield family
        late, ran = _histogram(LATENESS), _histogram(DURATION)
        for queue in self._measured.deliveries:
            _add(late, queue, queue.late)
            _add(ran, queue, queue.ran)
        yield from (late, ran)


def _begin(queue: str, kind: Kind) -> Deliveries:
    return Deliveries(queue, kind, Distribution(LATENESS.bounds), Distribution(DURATION.bounds))


def _family(metric: Number) -> CounterMetricFamily | GaugeMetricFamily:
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return family(metric.prometheus_name, metric.meaning, labels=metric.labels)


def _histogram(metric: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(metric.prometheus_name, metric.meaning, labels=metric.labels)


def _add(family: HistogramMetricFamily, queue: Deliveries, values: object) -> None:
    assert isinstance(values, Distribution)  # noqa: S101 - as we made it
    bounds = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
    # Read once: its sum is the count, even while another thread adds to it.
    upto = list(accumulate(values.counts))
    family.add_metric((queue.queue, queue.kind.value), list(zip(bounds, upto, strict=True)), values.sum)
