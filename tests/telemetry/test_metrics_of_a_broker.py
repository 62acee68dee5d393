"""Numbers from a broker at work, in memory and in SQLite."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from faststream.exceptions import RejectMessage

from nightmail import ConstantRetry, OutboxBroker, PostponeMessage
from nightmail.annotations import OutboxMessage
from nightmail.errors import LeaseLost
from nightmail.testing.clock import ManualClock
from tests.broker.support import Heard, Make, soon, started
from tests.telemetry.support import Read, happened, opened, running

IN_AN_HOUR = ConstantRetry(delay=3600, jitter=0)


def take_all_sorts(broker: OutboxBroker) -> None:
    """A handler that ends as its message says."""

    @broker.subscriber("q", retry=IN_AN_HOUR)
    async def take(body: str) -> None:
        match body:
            case "fails":
                raise ValueError(body)
            case "waits":
                raise PostponeMessage(60)
            case "wrong":
                raise RejectMessage(reason="customer 4711 is gone")
            case "refused":
                raise RejectMessage


async def test_every_ending_is_counted(make: Make, heard: Heard, read: Read) -> None:
    broker = make()
    take_all_sorts(broker)

    async with running(broker):
        await broker.publish_batch("fine", "fine", "fails", "waits", "wrong", "refused", queue="q")
        await heard.until(lambda: len(heard.outcomes) == 6)

    assert read("nightmail_claimed_messages_total") == {("message", "q"): 6}
    assert happened(read("nightmail_settled_messages_total")) == {
        ("message", "done", "q"): 2,
        ("message", "retried", "q"): 1,
        ("message", "postponed", "q"): 1,
        ("message", "dead", "q"): 2,
    }
    assert happened(read("nightmail_dead_messages_total")) == {("q", "other"): 1, ("q", "rejected"): 1}
    assert read("nightmail_handler_failures_total") == {("message", "q"): 1}
    assert read("nightmail_handler_duration_seconds_count") == {("message", "q"): 6}
    assert read("nightmail_lateness_seconds_count") == {("message", "q"): 6}
    assert read("nightmail_in_flight_messages") == {("message", "q"): 0}


async def test_what_runs_is_in_flight(make: Make, heard: Heard, read: Read) -> None:
    broker, begun, may_end = make(), asyncio.Event(), asyncio.Event()

    @broker.subscriber("q")
    async def take(body: str) -> None:
        begun.set()
        await may_end.wait()

    async with running(broker):
        await broker.publish("slow", "q")
        await soon(begun)
        in_flight = read("nightmail_in_flight_messages")
        may_end.set()
        await heard.until(lambda: len(heard.outcomes) == 1)

    assert in_flight == {("message", "q"): 1}
    assert read("nightmail_in_flight_messages") == {("message", "q"): 0}


async def test_nothing_stays_in_flight_when_leases_are_lost_or_handlers_cancelled(
    make: Make, heard: Heard, read: Read
) -> None:
    broker, begun = make(graceful_timeout=0), asyncio.Event()

    @broker.subscriber("q")
    async def take(body: str) -> None:
        if body == "lost":
            raise LeaseLost
        begun.set()
        await asyncio.Event().wait()

    async with running(broker):
        await broker.publish("lost", "q")
        await heard.until(lambda: len(heard.lost) == 1)
        await broker.publish("hangs", "q")
        await soon(begun)

    assert read("nightmail_in_flight_messages") == {("message", "q"): 0}
    assert read("nightmail_lost_leases_total") == {("message", "q"): 1}
    assert happened(read("nightmail_settled_messages_total")) == {("message", "released", "q"): 1}


async def test_a_batch_is_one_run_of_many_messages(make: Make, heard: Heard, read: Read) -> None:
    broker = make()

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str]) -> None:
        raise ValueError("all of them")

    async with opened(broker.store):
        await broker.connect()
        await broker.publish_batch("a", "b", "c", queue="q")
        async with started(broker):
            await heard.until(lambda: len(heard.outcomes) == 3)

    assert read("nightmail_handler_duration_seconds_count") == {("message", "q"): 1}
    assert read("nightmail_lateness_seconds_count") == {("message", "q"): 3}
    assert read("nightmail_handler_failures_total") == {("message", "q"): 3}
    assert read("nightmail_in_flight_messages") == {("message", "q"): 0}


async def test_lateness_is_counted_from_the_due_time_by_the_stores_clock(
    make: Make, heard: Heard, read: Read, clock: ManualClock
) -> None:
    broker = make()

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with opened(broker.store):
        await broker.connect()
        await broker.publish("later", "q", activate_in=timedelta(hours=5))
        clock.advance(timedelta(hours=5, seconds=20))
        async with started(broker):
            await heard.until(lambda: len(heard.outcomes) == 1)

    buckets = read("nightmail_lateness_seconds_bucket")
    assert [buckets["message", upto, "q"] for upto in ("10.0", "30.0")] == [0, 1]


async def test_looking_after_dead_letters_is_told_apart(make: Make, heard: Heard, read: Read) -> None:
    broker = make()

    @broker.subscriber("q")
    async def refuse(body: str) -> None:
        raise RejectMessage

    @broker.subscriber("q", dead_letters=True)
    async def bury(body: str, msg: OutboxMessage) -> None: ...

    async with running(broker):
        await broker.publish("no", "q")
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert happened(read("nightmail_settled_messages_total")) == {
        ("message", "dead", "q"): 1,
        ("dead_letter", "done", "q"): 1,
    }


async def test_what_is_stored_counts_as_published_and_a_conflict_does_not(make: Make, read: Read) -> None:
    broker = make()

    async with opened(broker.store):
        await broker.connect()
        await broker.publish("once", "q", timer_id="t")
        await broker.publish("twice", "q", timer_id="t")
        await broker.publish_batch("a", "b", "c", queue="r")
        await broker.publish_batch(queue="r")

    assert read("nightmail_published_messages_total") == {("q",): 1, ("r",): 3}
