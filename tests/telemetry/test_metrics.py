"""What happens becomes numbers, the same ones for either exporter. Told by hand, event by event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from nightmail.controls import PauseCause
from nightmail.message import DeadDelivery, Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Release, Retry
from nightmail.store import Settlement
from nightmail.telemetry.metrics_observer import MetricsObserver
from nightmail.telemetry.prometheus import PrometheusObserver
from tests.telemetry.support import Read, happened
from tests.unit.support import NOON, delivery

ONE = delivery(id=1)
SECOND = timedelta(seconds=1)


def letter(**given: Any) -> DeadDelivery:
    """A dead letter that a worker has claimed."""
    message = delivery(**given)
    values = {each.name: getattr(message, each.name) for each in fields(Delivery)}
    return DeadDelivery(**values, message_id=9, reason="expired", error=None, died_at=NOON)


@pytest.mark.parametrize(
    ("outcome", "ending"),
    [
        (Done(), "done"),
        (Retry(), "retried"),
        (Postpone(SECOND), "postponed"),
        (Dead("rejected"), "dead"),
        (Release(), "released"),
    ],
)
def test_a_settlement_counts_by_its_outcome(
    metrics: MetricsObserver, read: Read, outcome: Outcome, ending: str
) -> None:
    metrics.settled([Settlement(ONE, outcome), Settlement(ONE, outcome)])

    assert happened(read("nightmail_settled_messages_total")) == {("message", ending, "mail"): 2}


@pytest.mark.parametrize(
    ("tell", "ending"),
    [
        (lambda metrics: metrics.acked_in_transaction(ONE), "acked_in_transaction"),
        (lambda metrics: metrics.uncertain(Settlement(ONE, Done())), "uncertain"),
        (lambda metrics: metrics.settled([Settlement(delivery(superseded=True), Done())]), "superseded"),
    ],
)
def test_so_do_the_endings_that_are_no_outcomes(
    metrics: MetricsObserver, read: Read, tell: Callable[[MetricsObserver], None], ending: str
) -> None:
    tell(metrics)

    assert happened(read("nightmail_settled_messages_total")) == {("message", ending, "mail"): 1}


def test_a_message_that_was_replaced_counts_once_when_it_is_gone(
    metrics: MetricsObserver, read: Read
) -> None:
    replaced = delivery(superseded=True)

    metrics.superseded(replaced)
    metrics.settled([Settlement(replaced, Done())])

    assert happened(read("nightmail_settled_messages_total")) == {("message", "superseded", "mail"): 1}


def test_the_dead_count_by_reason_and_a_handlers_own_reason_is_other(
    metrics: MetricsObserver, read: Read
) -> None:
    reasons = [*Reason, "customer 4711 is gone", "customer 4712 is gone"]

    metrics.settled([Settlement(ONE, Dead(reason)) for reason in reasons])

    assert happened(read("nightmail_dead_messages_total")) == {
        ("mail", "rejected"): 1,
        ("mail", "retries_exhausted"): 1,
        ("mail", "max_deliveries"): 1,
        ("mail", "undecodable"): 1,
        ("mail", "policy_error"): 1,
        ("mail", "expired"): 1,
        ("mail", "unreadable"): 1,
        ("mail", "stopped"): 1,
        ("mail", "too_large"): 1,
        ("mail", "other"): 2,
    }


def test_pauses_count_by_queue_and_cause_and_so_do_their_ends(metrics: MetricsObserver, read: Read) -> None:
    metrics.paused("mail", PauseCause.BREAKER, "host/1", None, None)
    metrics.paused("mail", PauseCause.OPERATOR, "ann", None, None)
    metrics.paused("mail", PauseCause.OPERATOR, "ann", None, None)
    metrics.resumed("mail", "ann")

    paused = happened(read("nightmail_queue_pauses_total"))
    assert sorted(paused.values()) == [1, 2]
    assert {"breaker", "operator"} == {label for labels in paused for label in labels} - {"mail"}
    assert list(happened(read("nightmail_queue_resumptions_total")).values()) == [1]


def test_what_has_not_happened_yet_is_told_as_nothing_so_that_the_first_is_an_increase(
    metrics: MetricsObserver, read: Read
) -> None:
    metrics.claimed([ONE])

    assert set(read("nightmail_settled_messages_total").values()) == {0}
    assert ("message", "dead", "mail") in read("nightmail_settled_messages_total")
    assert read("nightmail_dead_messages_total")["mail", "max_deliveries"] == 0
    assert read("nightmail_dead_messages_total")["mail", "other"] == 0


def test_dead_letters_are_told_apart_from_messages(metrics: MetricsObserver, read: Read) -> None:
    metrics.claimed([ONE, letter(id=2)])
    metrics.settled([Settlement(letter(id=2), Dead("rejected")), Settlement(ONE, Done())])

    assert read("nightmail_claimed_messages_total") == {("message", "mail"): 1, ("dead_letter", "mail"): 1}
    assert happened(read("nightmail_settled_messages_total")) == {
        ("message", "done", "mail"): 1,
        ("dead_letter", "dead", "mail"): 1,
    }
    # A letter that is given up was a dead letter before.
    assert happened(read("nightmail_dead_messages_total")) == {}


def test_claims_failures_and_lost_leases_count_by_queue(metrics: MetricsObserver, read: Read) -> None:
    metrics.claimed([ONE, delivery(queue="post"), ONE])
    metrics.failed(ONE, ValueError())
    metrics.overdue(ONE, 3.5)
    metrics.lease_lost(delivery(queue="post"))

    assert read("nightmail_claimed_messages_total") == {("message", "mail"): 2, ("message", "post"): 1}
    assert read("nightmail_handler_failures_total") == {("message", "mail"): 1, ("message", "post"): 0}
    assert read("nightmail_overdue_messages_total") == {("message", "mail"): 1, ("message", "post"): 0}
    assert read("nightmail_lost_leases_total") == {("message", "mail"): 0, ("message", "post"): 1}


def test_what_is_in_handlers_goes_up_and_down(metrics: MetricsObserver, read: Read) -> None:
    two = [delivery(id=1), delivery(id=2)]
    metrics.claimed(two)
    for each in two:
        metrics.started(each)
    assert read("nightmail_in_flight_messages") == {("message", "mail"): 2}

    metrics.ended(two[:1], 0.2)
    assert read("nightmail_in_flight_messages") == {("message", "mail"): 1}

    metrics.ended(two[1:], 0.2)
    assert read("nightmail_in_flight_messages") == {("message", "mail"): 0}


def test_a_handlers_duration_falls_into_its_bucket_and_a_batch_counts_once(
    metrics: MetricsObserver, read: Read
) -> None:
    metrics.ended([ONE], 0.02)
    metrics.ended([ONE, ONE, ONE], 4000)

    buckets = read("nightmail_handler_duration_seconds_bucket")
    assert read("nightmail_handler_duration_seconds_count") == {("message", "mail"): 2}
    assert read("nightmail_handler_duration_seconds_sum") == {("message", "mail"): pytest.approx(4000.02)}
    assert [buckets["message", upto, "mail"] for upto in ("0.01", "0.025", "1800.0", "+Inf")] == [0, 1, 1, 2]


def test_what_has_no_queue_is_counted_too(metrics: MetricsObserver, read: Read) -> None:
    metrics.woken()
    metrics.woken()
    metrics.store_unavailable(OSError(), SECOND)
    metrics.drained(0)
    metrics.drained(3)
    metrics.drained(2)

    assert read("nightmail_wakeups_total") == {(): 2}
    assert read("nightmail_store_unavailable_total") == {(): 1}
    assert read("nightmail_drain_timeouts_total") == {(): 2}
    assert read("nightmail_abandoned_messages_total") == {(): 5}


def test_publishes_count_by_queue(metrics: MetricsObserver, read: Read) -> None:
    metrics.published("mail", 1)
    metrics.published("post", 10)
    metrics.published("mail", 2)

    assert read("nightmail_published_messages_total") == {("mail",): 3, ("post",): 10}


def test_queues_without_end_do_not_become_labels_without_end(
    metrics: MetricsObserver, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fewer than there may be: OpenTelemetry stops collecting after ten seconds, on a busy machine too.
    monkeypatch.setattr("nightmail.telemetry.metrics_observer.MOST_QUEUES", 100)
    for number in range(150):
        metrics.published(f"reply-{number}", 1)
        metrics.lease_lost(delivery(queue=f"reply-{number}"))

    published, lost = read("nightmail_published_messages_total"), read("nightmail_lost_leases_total")
    assert len(published) == len(lost) == 101
    assert published["other",] == lost["message", "other"] == 50


def test_nothing_of_a_message_but_its_queue_is_told() -> None:
    registry = CollectorRegistry()
    metrics = PrometheusObserver(registry=registry)
    told = delivery(
        id=4711,
        body=b"hunter2-body",
        encoded_headers='{"secret":"hunter2-header"}',
        timer_id="hunter2-timer",
        ordering_key="hunter2-key",
    )

    metrics.claimed([told])
    metrics.started(told)
    metrics.failed(told, ValueError("hunter2-error"))
    metrics.ended([told], 1)
    metrics.settled([Settlement(told, Dead("hunter2-reason", "hunter2-error"))])
    metrics.lease_lost(told)
    metrics.uncertain(Settlement(told, Done()))
    metrics.store_unavailable(OSError("hunter2-dsn"), SECOND)

    page = generate_latest(registry).decode()
    assert 'queue="mail"' in page
    assert "hunter2" not in page
    assert "4711" not in page
    assert str(told.token) not in page


def test_two_observers_cannot_share_a_registry() -> None:
    registry = CollectorRegistry()
    PrometheusObserver(registry=registry)

    with pytest.raises(ValueError, match="Duplicated timeseries"):
        PrometheusObserver(registry=registry)
