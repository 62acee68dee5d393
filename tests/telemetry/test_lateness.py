"""How late a handler starts, by the clock on which its message is due."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nightmail.message import Delivery
from nightmail.telemetry import metrics_observer
from nightmail.telemetry.counts import Deliveries, Kind
from nightmail.telemetry.metrics_observer import RELEARN_SECONDS, MetricsObserver
from tests.unit.support import NOON, delivery


class Monotonic:
    """This process's monotonic clock, in a test's hands."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    """The clock that `MetricsObserver` goes by between claims."""
    clock = Monotonic()
    monkeypatch.setattr(metrics_observer, "monotonic", clock)
    return clock


@pytest.fixture
def late() -> list[float]:
    """How late each was."""
    return []


@pytest.fixture
def observer(late: list[float]) -> MetricsObserver:
    """Writes down how late each was."""

    def begin(queue: str, kind: Kind) -> Deliveries:
        return Deliveries(queue, kind, late.append, lambda _: None)

    return MetricsObserver(begin)


def due(seconds_ago: float, *, claimed: float = 0.0) -> Delivery:
    """Claimed so long after noon, when it had been due for so long."""
    claimed_at = NOON + timedelta(seconds=claimed)
    return delivery(due_at=claimed_at - timedelta(seconds=seconds_ago), claimed_at=claimed_at)


def test_it_is_the_time_from_due_to_claim_and_from_claim_to_start(
    observer: MetricsObserver, ours: Monotonic, late: list[float]
) -> None:
    message = due(2)
    observer.claimed([message])
    ours.seconds += 0.5  # it waits in the worker's hand

    observer.started(message)

    assert late == [pytest.approx(2.5)]


def test_this_machines_own_idea_of_the_time_plays_no_part(
    observer: MetricsObserver, ours: Monotonic, late: list[float]
) -> None:
    # The store says 2030: its clock is years off ours, and years off the monotonic one.
    message = due(0)
    observer.claimed([message])

    observer.started(message)

    assert late == [pytest.approx(0)]


def test_what_was_claimed_before_a_newer_claim_is_measured_rightly(
    observer: MetricsObserver, ours: Monotonic, late: list[float]
) -> None:
    early = due(0)
    observer.claimed([early])
    ours.seconds += 3
    observer.claimed([due(0, claimed=3)])

    observer.started(early)

    assert late == [pytest.approx(3)]


def test_a_claim_whose_answer_came_late_does_not_make_others_look_punctual(
    observer: MetricsObserver, ours: Monotonic, late: list[float]
) -> None:
    observer.claimed([due(0)])
    ours.seconds += 40
    recalled = due(1, claimed=10)  # its reply was lost for half a minute

    observer.claimed([recalled])
    observer.started(recalled)

    assert late == [pytest.approx(31)]


def test_a_store_whose_clock_was_set_back_is_believed_after_a_while(
    observer: MetricsObserver, ours: Monotonic, late: list[float]
) -> None:
    observer.claimed([due(0, claimed=3600)])
    ours.seconds += RELEARN_SECONDS + 1
    message = due(2)

    observer.claimed([message])
    observer.started(message)

    assert late == [pytest.approx(2)]


def test_nothing_is_ever_early(observer: MetricsObserver, ours: Monotonic, late: list[float]) -> None:
    message = due(-0.001)
    observer.claimed([message])

    observer.started(message)

    assert late == [0.0]
