"""What is typed, and what is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from nightmail.cli.exit_codes import Refusal
from nightmail.cli.output import plain
from nightmail.cli.texts import duration, safe, time
from nightmail.controls import Pause, WorkerRecord
from nightmail.operations.status import status
from nightmail.records import QueueStats
from nightmail.wording import length, moment, when

NOW = datetime(2026, 11, 17, tzinfo=UTC)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("90", timedelta(seconds=90)),
        ("1.5s", timedelta(seconds=1.5)),
        ("250ms", timedelta(milliseconds=250)),
        ("5m", timedelta(minutes=5)),
        ("5min", timedelta(minutes=5)),
        ("2h30m", timedelta(hours=2, minutes=30)),
        ("2 H 30 M", timedelta(hours=2, minutes=30)),
        ("7d", timedelta(days=7)),
        ("1w", timedelta(days=7)),
    ],
)
def test_durations_are_typed_in_units(typed: str, meant: timedelta) -> None:
    assert duration(typed) == meant


@pytest.mark.parametrize("typed", ["", "soon", "5 parsecs", "-5s", "5m!", "1e9s", "h"])
def test_what_is_no_duration_is_refused(typed: str) -> None:
    with pytest.raises(Refusal, match="a duration looks like"):
        duration(typed)


def test_times_need_a_zone() -> None:
    assert time("2026-11-17T10:00:00Z") == datetime(2026, 11, 17, 10, tzinfo=UTC)
    assert time("2026-11-17T10:00+01:00") == datetime(2026, 11, 17, 9, tzinfo=UTC)
    with pytest.raises(Refusal, match="no time zone"):
        time("2026-11-17T10:00:00")


@pytest.mark.parametrize(
    ("span", "shown"),
    [
        (timedelta(0), "0 s"),
        (timedelta(milliseconds=40), "40 ms"),
        (timedelta(seconds=40), "40 s"),
        (timedelta(seconds=61), "1 min 1 s"),
        (timedelta(minutes=5), "5 min"),
        (timedelta(hours=3, minutes=12, seconds=5), "3 h 12 min"),
        (timedelta(days=400, hours=2), "400 d 2 h"),
        (-timedelta(seconds=90), "-1 min 30 s"),
    ],
)
def test_spans_are_shown_in_two_units(span: timedelta, shown: str) -> None:
    assert length(span) == shown


def test_a_moment_is_shown_both_ways_and_in_utc() -> None:
    now = datetime(2026, 11, 17, 4, 0, tzinfo=UTC)
    east = timezone(timedelta(hours=1))

    assert moment(datetime(2026, 11, 17, 5, 0, 1, tzinfo=east)) == "2026-11-17 04:00:01Z"
    assert when(now + timedelta(hours=3, minutes=12), now) == "in 3 h 12 min (2026-11-17 07:12:00Z)"
    assert when(now - timedelta(seconds=5), now) == "5 s ago (2026-11-17 03:59:55Z)"


def test_a_text_stays_in_its_line() -> None:
    assert safe("tea\n\x1b[31m\u202e\x00") == "tea\\n\\x1b[31m\\u202e\\x00"
    assert safe("x" * 300) == "x" * 199 + "…"


def test_ids_are_texts_in_json_because_those_of_redis_are_large() -> None:
    assert plain({"id": 2**62, "newest": 5, "count": 7, "after": timedelta(seconds=1.5)}) == {
        "id": str(2**62),
        "newest": "5",
        "count": 7,
        "after": 1.5,
    }


def test_two_looks_tell_where_a_queue_is_going() -> None:
    before = {
        "shrinks": QueueStats(ready=100, running=2),
        "gone": QueueStats(ready=1),
        "grows": QueueStats(ready=1),
    }
    now = {
        "shrinks": QueueStats(ready=80, running=2, dead=4),
        "grows": QueueStats(ready=11, scheduled=10),
        "new": QueueStats(dead=1),
    }

    found = {each.queue: each for each in status(now, before, 2.0)}

    assert list(found) == ["gone", "grows", "new", "shrinks"]
    shrinks = found["shrinks"]
    assert (shrinks.change_per_second, shrinks.dead_per_second) == (-10.0, 2.0)
    assert shrinks.drained_in == timedelta(seconds=8)
    assert (found["grows"].change_per_second, found["grows"].drained_in) == (10.0, None)
    assert (found["gone"].ready, found["gone"].change_per_second, found["gone"].drained_in) == (0, -0.5, None)
    assert status(now)[0].change_per_second is None


def test_what_goes_out_is_what_live_workers_say_and_what_comes_in_is_that_and_the_change() -> None:
    said: list[dict[str, object]] = [
        {"queues": ["mail"], "ended_per_second": {"mail": 20.0}},
        {"queues": ["mail", "sms"], "ended_per_second": {"mail": 5.5, "sms": 1.0}},
        {"queues": ["mail"], "ended_per_second": {"mail": 100.0}, "dead_letters": True},
        {"queues": ["mail"], "ended_per_second": "fast"},
        {"queues": ["mail"], "ended_per_second": {"mail": "fast"}},
    ]
    workers = reporting(*said)
    before = {"mail": QueueStats(ready=100), "sms": QueueStats(ready=100), "push": QueueStats(ready=1)}
    now = {"mail": QueueStats(ready=80), "sms": QueueStats(ready=80), "push": QueueStats(ready=5)}

    found = {each.queue: each for each in status(now, before, 2.0, workers=workers)}

    assert (found["mail"].out_per_second, found["mail"].in_per_second) == (25.5, 15.5)
    # Workers report every ten seconds: what has only just begun is not in it yet.
    assert (found["sms"].out_per_second, found["sms"].in_per_second) == (1.0, 0.0)
    assert (found["push"].out_per_second, found["push"].in_per_second) == (0.0, 2.0)
    (once,) = (each for each in status(now, workers=workers) if each.queue == "mail")
    assert (once.out_per_second, once.in_per_second) == (25.5, None)


def reporting(*said: dict[str, object], queues: tuple[str, ...] = ("mail",)) -> list[WorkerRecord]:
    """Live workers that say this."""
    return [
        WorkerRecord(
            id=f"{number:016x}",
            host="host-1",
            pid=number,
            version="1",
            queues=queues,
            state={"subscribers": [each]},
            started_at=NOW,
            seen_at=NOW,
        )
        for number, each in enumerate(said)
    ]


def test_lateness_is_of_what_started_and_apart_from_the_age_of_what_waits() -> None:
    workers = reporting(
        {"queues": ["mail"], "late_seconds": {"mail": 0.25}},
        {"queues": ["mail"], "late_seconds": {"mail": 3}},
        {"queues": ["mail"], "late_seconds": {"mail": 100.0}, "dead_letters": True},
        {"queues": ["mail"]},  # An earlier version.
        {"queues": ["mail"], "late_seconds": "very"},
        {"queues": ["mail"], "late_seconds": {"mail": "very"}},
        {"queues": ["mail"], "late_seconds": {"mail": float("inf"), "sms": -1}},
    )
    now = {"mail": QueueStats(ready=1, oldest_due_age=timedelta(minutes=9)), "sms": QueueStats(ready=1)}

    mail, sms = status(now, workers=workers)

    assert (mail.oldest_due_age, mail.lateness) == (timedelta(minutes=9), timedelta(seconds=3))
    assert (sms.oldest_due_age, sms.lateness) == (None, None)


def test_a_queue_that_live_workers_consume_is_listed_even_if_it_is_empty() -> None:
    workers = reporting(
        {"queues": ["mail"], "ended_per_second": {"mail": 20.0}},
        {"queues": "mail"},  # Nothing of use about its subscriber.
    )
    only_dead_letters = reporting({"queues": ["mail"], "dead_letters": True}, queues=())

    (mail,) = status({}, workers=[*workers, *only_dead_letters])

    assert (mail.queue, mail.ready, mail.workers, mail.out_per_second) == ("mail", 0, 2, 20.0)
    assert status({}, workers=only_dead_letters) == []


def test_pauses_of_the_whole_queue_have_an_age() -> None:
    def paused(key: str | None, hours: int, *, automatic: bool) -> Pause:
        since = NOW - timedelta(hours=hours)
        return Pause(
            queue="mail",
            ordering_key=key,
            by="ann",
            reason=None,
            since=since,
            until=None,
            automatic=automatic,
        )

    (mail,) = status(
        {},
        pauses=[
            paused("k-1", 9, automatic=False),
            paused("k-2", 9, automatic=False),
            paused(None, 2, automatic=False),
            paused(None, 1, automatic=True),
        ],
        at=NOW,
    )

    assert (mail.paused_for, mail.breaker_open_for) == (timedelta(hours=2), timedelta(hours=1))
    assert mail.paused_keys == 2
