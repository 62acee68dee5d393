"""The metrics, for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from nightmail.telemetry.counts import Deliveries, Kind, Observe
from nightmail.telemetry.metrics import DURATION, LATENESS, NUMBERS, Histogram, Number
from nightmail.telemetry.metrics_observer import MetricsObserver
from nightmail.telemetry.sampling import Sampled


class OpenTelemetryObserver(MetricsObserver):
    """Counts events, for the readers of a meter provider. One for each event loop.

    Counters are read when they are collected and cost a message next to nothing. Recording one histogram value takes
    the SDK longer than the engine takes for a message: for a busy queue they get a fair sample, see `Sampled`.
    """

    def __init__(self, *, meter_provider: MeterProvider | None = None, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter("nightmail", meter_provider=meter_provider)
        late, ran = _histogram(meter, LATENESS), _histogram(meter, DURATION)

        def begin(queue: str, kind: Kind) -> Deliveries:
            return Deliveries(queue, kind, late(queue, kind), ran(queue, kind))

        super().__init__(begin)
        for metric in NUMBERS:
            _create(meter, metric)(
                metric.name,
                callbacks=[partial(_observations, self, metric)],
                unit=metric.unit,
                description=metric.meaning,
            )


def _create(meter: Meter, metric: Number) -> Callable[..., object]:
    kinds: dict[str, Callable[..., object]] = {
        "counter": meter.create_observable_counter,
        "sum": meter.create_observable_up_down_counter,
        "gauge": meter.create_observable_gauge,
    }
    return kinds[metric.kind]


def _observations(measured: MetricsObserver, metric: Number, _: CallbackOptions) -> Iterable[Observation]:
    return [
        Observation(value, dict(zip(metric.labels, labels, strict=True)))
        for labels, value in metric.read(measured)
    ]


def _histogram(meter: Meter, metric: Histogram) -> Callable[[str, Kind], Observe]:
    histogram = meter.create_histogram(
        metric.name,
        unit=metric.unit,
        description=metric.meaning,
        explicit_bucket_boundaries_advisory=list(metric.bounds),
    )

    def of(queue: str, kind: Kind) -> Observe:
        attributes = dict(zip(metric.labels, (queue, kind.value), strict=True))
        return Sampled(partial(histogram.record, attributes=attributes))

    return of
