"""What an operator reads in the log, and what never gets there."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.observe import LoggingObserver, Observer
from nightmail.outcome import Dead, Done, Retry
from nightmail.store import Settlement
from tests.unit.support import delivery

SECRET = "hunter2"
CLAIMED = delivery(
    id=7, attempts=2, deliveries=4, body=SECRET.encode(), encoded_headers=f'{{"password":"{SECRET}"}}'
)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything from the level of information on."""
    caplog.set_level(logging.INFO, logger="nightmail")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was said, and how loudly."""
    return [(record.levelname, record.getMessage()) for record in log.records]


def test_each_event_worth_knowing_is_one_line(log: pytest.LogCaptureFixture) -> None:
    observer = LoggingObserver()

    observer.policy_failed(CLAIMED, KeyError(SECRET))
    observer.settled([Settlement(CLAIMED, Done()), Settlement(CLAIMED, Dead("expired", ran=False))])
    observer.settled([Settlement(CLAIMED, Retry(timedelta(seconds=4.25), "ValueError('no tea')"))])
    observer.settled([Settlement(CLAIMED, Retry())])
    observer.settled([Settlement(CLAIMED, Dead("retries_exhausted", "ValueError('no tea')"))])
    observer.overruled(CLAIMED, "ValueError('no tea')", Done())
    observer.superseded(CLAIMED)
    observer.lease_lost(CLAIMED)
    observer.uncertain(Settlement(CLAIMED, Retry()))
    observer.drained(3)

    assert lines(log) == [
        ("ERROR", "message 7 of mail: its retry policy raised KeyError"),
        ("ERROR", "message 7 of mail: not run; a dead letter now: expired"),
        ("WARNING", "message 7 of mail: attempt 3 failed: ValueError('no tea'); next attempt in 4.25 s"),
        ("INFO", "message 7 of mail: attempt 3 asked to be repeated; next attempt at once"),
        (
            "ERROR",
            "message 7 of mail: attempt 3 failed: ValueError('no tea'); a dead letter now: retries_exhausted",
        ),
        ("WARNING", "message 7 of mail: attempt 3 failed: ValueError('no tea'); done all the same"),
        ("INFO", "message 7 of mail: replaced while it ran: dropped"),
        ("WARNING", "message 7 of mail: lease lost on delivery 4; another worker has it, or it is gone"),
        ("WARNING", "message 7 of mail: gone; the store's answer to our Retry was lost"),
        ("WARNING", "stopped with 3 messages unsettled; they come back when their leases end"),
    ]


def test_an_outage_and_its_end_are_one_line_each(log: pytest.LogCaptureFixture) -> None:
    observer = LoggingObserver()
    refused = StoreUnavailable()
    refused.__cause__ = ConnectionRefusedError(111, "Connect call failed")

    for failures in range(1, 4):
        observer.store_unavailable(refused, timedelta(seconds=failures))
    observer.store_recovered()
    observer.store_recovered()

    assert lines(log) == [
        (
            "WARNING",
            "the store is unavailable: ConnectionRefusedError(111, 'Connect call failed'); trying again in 1 s",
        ),
        ("INFO", "the store answers again"),
    ]


def test_whatever_the_store_does_shows_that_an_outage_is_over(log: pytest.LogCaptureFixture) -> None:
    """The keeper tells of its failures, but not that the next renewal went well."""
    observer = LoggingObserver()

    observer.store_unavailable(StoreUnavailable("the server closed the connection"), timedelta(seconds=10))
    observer.settled([Settlement(CLAIMED, Done())])
    observer.store_unavailable(StoreUnavailable("the server closed the connection"), timedelta(seconds=10))

    assert [text for _, text in lines(log)] == [
        "the store is unavailable: the server closed the connection; trying again in 10 s",
        "the store answers again",
        "the store is unavailable: the server closed the connection; trying again in 10 s",
    ]


def test_neither_bodies_nor_headers_nor_tokens_are_logged(log: pytest.LogCaptureFixture) -> None:
    test_each_event_worth_knowing_is_one_line(log)

    assert SECRET not in log.text
    assert str(CLAIMED.token) not in log.text


def test_nothing_that_is_told_begins_a_line_of_its_own(log: pytest.LogCaptureFixture) -> None:
    forged = "no\n2026-01-01 CRITICAL - all is lost\x1b[2J" + "x" * 10_000

    LoggingObserver().settled(
        [Settlement(CLAIMED, Dead(forged[:60], forged)), Settlement(CLAIMED, Retry(error=forged))]
    )

    for _, text in lines(log):
        assert text.isprintable()
        assert len(text) < 1000


def test_what_goes_well_is_not_worth_a_line(log: pytest.LogCaptureFixture) -> None:
    observer = LoggingObserver()

    observer.claimed([CLAIMED])
    observer.started(CLAIMED)
    observer.settled([Settlement(CLAIMED, Done())])
    observer.woken()
    observer.drained(0)

    assert lines(log) == []


def test_another_logger_may_be_given(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="shop")

    observer = LoggingObserver(logging.getLogger("shop"))
    observer.log_through(logging.getLogger("nightmail").log)  # As a broker does: what was given stays.
    observer.drained(1)

    assert [record.name for record in caplog.records] == ["shop"]


def test_an_observer_of_nothing_hears_everything() -> None:
    observer = Observer()

    observer.claimed([CLAIMED])
    observer.started(CLAIMED)
    observer.failed(CLAIMED, ValueError())
    observer.policy_failed(CLAIMED, ValueError())
    observer.settled([])
    observer.superseded(CLAIMED)
    observer.lease_lost(CLAIMED)
    observer.uncertain(Settlement(CLAIMED, Done()))
    observer.woken()
    observer.store_unavailable(ValueError(), timedelta(0))
    observer.store_recovered()
    observer.drained(0)
