"""Every metric: its name, its meaning, and where its numbers are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from nightmail.controls import QueueStatus
from nightmail.telemetry.counts import Deliveries, Kind
from nightmail.telemetry.metrics_observer import MetricsObserver

Values: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Numbers, each with the values of its labels."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name as OpenTelemetry writes it, and the rest as the exporters need it."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    unit: str = ""

    @property
    def prometheus_name(self) -> str:
        """The Prometheus name, as OpenTelemetry's exporters translate it; a counter adds `_total`."""
        name = self.name.replace(".", "_")
        return f"{name}_seconds" if self.unit == "s" else name


@dataclass(frozen=True, slots=True)
class Number(Metric):
    """A metric that is one number for each combination of labels."""

    kind: Literal["counter", "sum", "gauge"] = "counter"
    """A counter only grows; sums of several processes add up; a gauge is the same wherever it is read."""
    read: Callable[[MetricsObserver], Values] = lambda _: ()


@dataclass(frozen=True, slots=True)
class Histogram(Metric):
    """A metric that is a distribution."""

    bounds: tuple[float, ...] = ()


_BY_QUEUE: Final = ("queue", "kind")


def _of_each(read: Callable[[Deliveries], float]) -> Callable[[MetricsObserver], Values]:
    return lambda measured: [((each.queue, each.kind.value), read(each)) for each in measured.deliveries]


def _once(read: Callable[[MetricsObserver], float]) -> Callable[[MetricsObserver], Values]:
    return lambda measured: [((), read(measured))]


def _endings(measured: MetricsObserver) -> Values:
    for each in measured.deliveries:
        for ending, count in each.endings.items():
            yield (each.queue, each.kind.value, ending.value), count


def _reasons(measured: MetricsObserver) -> Values:
    for each in measured.deliveries:
        if each.kind is Kind.MESSAGE:
            for reason, count in each.reasons.items():
                yield (each.queue, str(reason)), count


def _depths(measured: MetricsObserver) -> Values:
    for queue, status in measured.queues.items():
        yield (queue, "ready"), status.ready
        yield (queue, "scheduled"), status.scheduled
        yield (queue, "running"), status.running
        yield (queue, "superseded"), status.superseded
        yield (queue, "dead"), status.dead


def _of_each_queue(read: Callable[[QueueStatus], float]) -> Callable[[MetricsObserver], Values]:
    return lambda measured: [((queue,), read(status)) for queue, status in measured.queues.items()]


def _pause_ages(measured: MetricsObserver) -> Values:
    for queue, status in measured.queues.items():
        yield (queue, "operator"), _seconds(status.paused_for)
        yield (queue, "automatic"), _seconds(status.breaker_open_for)


def _seconds(duration: timedelta | None) -> float:
    return 0.0 if duration is None else duration.total_seconds()


PUBLISHED: Final = Number(
    "nightmail.published.messages",
    "Messages stored, or handed to a caller's transaction, whether or not that commits.",
    ("queue",),
    read=lambda measured: [((queue,), count) for queue, count in measured.published_by_queue()],
)
CLAIMED: Final = Number(
    "nightmail.claimed.messages", "Deliveries claimed.", _BY_QUEUE, read=_of_each(lambda each: each.claimed)
)
SETTLED: Final = Number(
    "nightmail.settled.messages",
    "Deliveries that ended, once the store has written it, by outcome.",
    (*_BY_QUEUE, "outcome"),
    read=_endings,
)
DEAD: Final = Number(
    "nightmail.dead.messages",
    "Messages that became dead letters, by reason; a reason of your own is `other`.",
    ("queue", "reason"),
    read=_reasons,
)
FAILURES: Final = Number(
    "nightmail.handler.failures",
    "Deliveries whose handler raised or ran out of time.",
    _BY_QUEUE,
    read=_of_each(lambda each: each.failures),
)
OVERDUE: Final = Number(
    "nightmail.overdue.messages",
    "Deliveries whose thread did not end when it was told to; each is kept until it does.",
    _BY_QUEUE,
    read=_of_each(lambda each: each.overdue),
)
LOST_LEASES: Final = Number(
    "nightmail.lost.leases",
    "Deliveries that another worker took over, or that were gone, before their end was written.",
    _BY_QUEUE,
    read=_of_each(lambda each: each.lost_leases),
)
IN_FLIGHT: Final = Number(
    "nightmail.in_flight.messages",
    "Deliveries in handlers now.",
    _BY_QUEUE,
    kind="sum",
    read=_of_each(lambda each: each.in_flight),
)
PAUSES: Final = Number(
    "nightmail.queue.pauses",
    "Times that this process paused a queue, by cause; a breaker's pause counts each time it is prolonged.",
    ("queue", "cause"),
    read=lambda measured: [((queue, cause.value), count) for (queue, cause), count in measured.pauses()],
)
RESUMPTIONS: Final = Number(
    "nightmail.queue.resumptions",
    "Times that this process resumed a queue: for an operator, or because a probe went well.",
    ("queue",),
    read=lambda measured: [((queue,), count) for queue, count in measured.resumptions()],
)
WAKEUPS: Final = Number(
    "nightmail.wakeups",
    "Waits that a publish, or whatever else became available, cut short.",
    read=_once(lambda measured: measured.wakeups),
)
STORE_UNAVAILABLE: Final = Number(
    "nightmail.store.unavailable",
    "Times that the store did not answer.",
    read=_once(lambda measured: measured.times_unavailable),
)
DRAIN_TIMEOUTS: Final = Number(
    "nightmail.drain.timeouts",
    "Workers that stopped with messages unsettled.",
    read=_once(lambda measured: measured.drain_timeouts),
)
ABANDONED: Final = Number(
    "nightmail.abandoned.messages",
    "Messages they left: each comes back when its lease ends.",
    read=_once(lambda measured: measured.abandoned),
)
DEPTH: Final = Number(
    "nightmail.queue.messages",
    "How a queue stands, by state; told by a `QueueWatch`.",
    ("queue", "state"),
    kind="gauge",
    read=_depths,
)
OLDEST_DUE_AGE: Final = Number(
    "nightmail.oldest_due.age",
    "For how long the oldest ready message has been due, 0 if none is; told by a `QueueWatch`.",
    ("queue",),
    "s",
    kind="gauge",
    read=_of_each_queue(lambda status: _seconds(status.oldest_due_age)),
)
PAUSE_AGE: Final = Number(
    "nightmail.pause.age",
    "How long a queue has been paused, by a person or by itself, 0 if it is not; told by a `QueueWatch`.",
    ("queue", "cause"),
    "s",
    kind="gauge",
    read=_pause_ages,
)
PAUSED_KEYS: Final = Number(
    "nightmail.paused.keys",
    "Ordering keys of a queue that are paused; told by a `QueueWatch`.",
    ("queue",),
    kind="gauge",
    read=_of_each_queue(lambda status: status.paused_keys),
)
LIVE_WORKERS: Final = Number(
    "nightmail.live.workers",
    "Processes that consume a queue and have reported within the last 30 seconds; told by a `QueueWatch`.",
    ("queue",),
    kind="gauge",
    read=_of_each_queue(lambda status: status.workers),
)
LATENESS: Final = Histogram(
    "nightmail.lateness",
    "How long after its due time a delivery's handler started.",
    _BY_QUEUE,
    "s",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600),
)
DURATION: Final = Histogram(
    "nightmail.handler.duration",
    "How long a handler ran; a batch counts once, under the queue of its first message.",
    _BY_QUEUE,
    "s",
    bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
)

NUMBERS: Final = (
    PUBLISHED, CLAIMED, SETTLED, DEAD, FAILURES, OVERDUE, LOST_LEASES, IN_FLIGHT, PAUSES, RESUMPTIONS,
    WAKEUPS, STORE_UNAVAILABLE, DRAIN_TIMEOUTS, ABANDONED, DEPTH, OLDEST_DUE_AGE, PAUSE_AGE, PAUSED_KEYS,
    LIVE_WORKERS,
)  # fmt: skip
HISTOGRAMS: Final = (LATENESS, DURATION)
