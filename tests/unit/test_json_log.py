"""The log as JSON: one object for each line, with what a line is about as fields of their own."""

from __future__ import annotations

import io
import json
import logging
import logging.config
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nightmail.controls import PauseCause
from nightmail.errors import StoreUnavailable
from nightmail.observe import LoggingObserver
from nightmail.outcome import Dead, Done, Reason, Retry
from nightmail.store import Settlement
from tests.unit.support import delivery

SECRET = "hunter2"
CLAIMED = delivery(
    id=2**60, attempts=2, deliveries=4, body=SECRET.encode(), encoded_headers=f'{{"password":"{SECRET}"}}'
)
ABOUT = {"queue": "mail", "message_id": str(2**60), "attempt": 3}


class Written:
    """What was written to the log."""

    def __init__(self, stream: io.StringIO) -> None:
        self.stream = stream

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def fields(self) -> list[dict[str, Any]]:
        """Without what each line has, and without what differs from run to run."""
        usual = ("time", "level", "logger", "message", "next_at")
        return [{name: each[name] for name in each if name not in usual} for each in self.objects()]


@pytest.fixture
def written() -> Iterator[Written]:
    """The library's logger, configured as an application does it."""
    stream = io.StringIO()
    before = logging.getLogger("nightmail").level
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"()": "nightmail.JSONFormatter", "fields": ["tenant"]}},
            "handlers": {"here": {"class": "logging.StreamHandler", "formatter": "json", "stream": stream}},
            "loggers": {"nightmail": {"level": "INFO", "handlers": ["here"], "propagate": False}},
        }
    )
    yield Written(stream)
    library = logging.getLogger("nightmail")
    library.handlers.clear()
    library.propagate = True
    library.setLevel(before)


def test_a_failure_says_what_happens_next_and_when(written: Written) -> None:
    asked = datetime.now(UTC) - timedelta(milliseconds=1)  # Of which they are cut off.
    LoggingObserver().settled([Settlement(CLAIMED, Retry(timedelta(seconds=4), "ValueError('no tea')"))])
    (line,) = written.objects()

    assert list(line)[:4] == ["time", "level", "logger", "message"]
    assert (line["level"], line["logger"]) == ("WARNING", "nightmail")
    assert line["message"] == (
        f"message {2**60} of mail: attempt 3 failed: ValueError('no tea'); next attempt in 4 s"
    )
    assert asked <= datetime.fromisoformat(line["time"]) <= datetime.now(UTC)
    next_at = datetime.fromisoformat(line["next_at"])
    assert next_at >= asked + timedelta(seconds=4)
    assert written.fields() == [
        {"event": "retried", **ABOUT, "error": "ValueError('no tea')", "next": "retry"}
    ]


def test_each_line_about_a_message_has_its_fields(written: Written) -> None:
    observer = LoggingObserver()

    observer.policy_failed(CLAIMED, KeyError(SECRET))
    observer.settled([Settlement(CLAIMED, Retry())])
    observer.settled([Settlement(CLAIMED, Dead("expired", ran=False))])
    observer.settled([Settlement(CLAIMED, Dead("retries_exhausted", "ValueError('no tea')"))])
    observer.settled([Settlement(CLAIMED, Dead(Reason.STOPPED, "stopped by ann"))])
    observer.overruled(CLAIMED, "ValueError('no tea')", Done())
    observer.overdue(CLAIMED, 61.5)
    observer.superseded(CLAIMED)
    observer.lease_lost(CLAIMED)
    observer.uncertain(Settlement(CLAIMED, Retry()))

    assert written.fields() == [
        {"event": "policy_failed", **ABOUT, "error": "KeyError", "next": "dead_letter"},
        {"event": "retried", **ABOUT, "next": "retry"},
        {"event": "died", **ABOUT, "reason": "expired", "next": "dead_letter"},
        {
            "event": "died", **ABOUT, "error": "ValueError('no tea')", "reason": "retries_exhausted",
            "next": "dead_letter",
        },
        {"event": "died", **ABOUT, "error": "stopped by ann", "reason": "stopped", "next": "dead_letter"},
        {"event": "overruled", **ABOUT, "error": "ValueError('no tea')", "next": "done"},
        {"event": "overdue", **ABOUT, "seconds": 61.5, "next": "stays_leased"},
        {"event": "superseded", **ABOUT, "next": "dropped"},
        {"event": "lease_lost", **ABOUT, "deliveries": 4},
        {"event": "uncertain", **ABOUT, "outcome": "retry"},
    ]  # fmt: skip


def test_each_line_about_a_queue_or_the_store_has_its_fields(written: Written) -> None:
    observer = LoggingObserver()

    observer.paused("mail", PauseCause.OPERATOR, "ann", None, "provider down")
    observer.paused("mail", PauseCause.HANDLER, "host-1/77", timedelta(minutes=1), None)
    observer.resumed("mail", "ann")
    observer.breaker_opened("mail", 20, 12.0, timedelta(seconds=30))
    observer.store_unavailable(StoreUnavailable("cannot reach db:5432"), timedelta(seconds=2))
    observer.store_recovered()
    observer.drained(3)

    assert written.fields() == [
        {"event": "paused", "queue": "mail", "by": "ann", "reason": "provider down"},
        {"event": "paused", "queue": "mail", "by": "host-1/77", "next": "probe"},
        {"event": "resumed", "queue": "mail", "by": "ann"},
        {"event": "breaker_opened", "queue": "mail", "failures": 20, "seconds": 12.0, "next": "probe"},
        {"event": "store_unavailable", "error": "cannot reach db:5432", "next": "try_again"},
        {"event": "store_recovered"},
        {"event": "drained", "left": 3},
    ]
    assert [("next_at" in each) for each in written.objects()] == [
        False,
        True,
        False,
        True,
        True,
        False,
        False,
    ]


def test_neither_bodies_nor_headers_nor_tokens_are_written(written: Written) -> None:
    test_each_line_about_a_message_has_its_fields(written)

    assert SECRET not in written.stream.getvalue()
    assert CLAIMED.token.hex not in written.stream.getvalue().replace("-", "")


def test_whatever_is_told_stays_in_its_line(written: Written) -> None:
    forged = 'no"}\n{"level": "CRITICAL"}\x1b[2J' + "x" * 10_000

    LoggingObserver().settled(
        [Settlement(CLAIMED, Dead("enough", forged)), Settlement(CLAIMED, Retry(error=forged))]
    )

    assert [each["level"] for each in written.objects()] == ["ERROR", "WARNING"]
    assert written.stream.getvalue().isascii()
    assert all(len(each["error"]) <= 500 for each in written.objects())


def test_of_other_fields_only_those_that_were_asked_for_are_written(written: Written) -> None:
    logging.getLogger("nightmail.shop").warning(
        "sent %s", "it", extra={"tenant": {"id": 7}, "password": SECRET}
    )

    (line,) = written.objects()
    assert line["message"] == "sent it"
    assert line["tenant"] == "{'id': 7}"
    assert SECRET not in written.stream.getvalue()


def test_a_traceback_is_one_field(written: Written) -> None:
    try:
        raise RuntimeError("no tea left")
    except RuntimeError:
        logging.getLogger("nightmail").exception("failed")

    (line,) = written.objects()
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
