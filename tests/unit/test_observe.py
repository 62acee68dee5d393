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

    observer.failed(CLAIMED, ValueError(SECRET))
    observer.policy_failed(CLAIMED, KeyError(SECRET))
    observer.settled([Settlement(CLAIMED, Dead("expired", SECRET)), Settlement(CLAIMED, Done())])
    observer.superseded(CLAIMED)
    observer.lease_lost(CLAIMED)
    observer.uncertain(Settlement(CLAIMED, Retry()))
    observer.store_unavailable(StoreUnavailable(SECRET), timedelta(seconds=2))
    observer.store_recovered()
    observer.drained(3)

    assert lines(log) == [
        ("WARNING", "message 7 of mail: attempt 3 failed with ValueError"),
        ("ERROR", "message 7 of mail: its retry policy raised KeyError"),
        ("ERROR", "message 7 of mail is a dead letter now: expired"),
        ("INFO", "message 7 of mail was replaced while it ran: dropped"),
        ("WARNING", "message 7 of mail: lease lost on delivery 4; another worker has it, or it is gone"),
        ("WARNING", "message 7 of mail is gone; the store's answer to our Retry was lost"),
        ("WARNING", "the store is unavailable (StoreUnavailable); trying again in 0:00:02"),
        ("INFO", "the store answers again"),
        ("WARNING", "stopped with 3 messages unsettled; they come back when their leases end"),
    ]


def test_neither_bodies_nor_headers_nor_tokens_nor_errors_texts_are_logged(
    log: pytest.LogCaptureFixture,
) -> None:
    test_each_event_worth_knowing_is_one_line(log)

    assert SECRET not in log.text
    assert str(CLAIMED.token) not in log.text


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

    LoggingObserver(logging.getLogger("shop")).store_recovered()

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
