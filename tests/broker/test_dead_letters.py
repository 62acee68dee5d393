"""Dead letters: looked at, handled like messages, sent round again, deleted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from nightmail import ConstantRetry, NoRetry, OutboxBroker, TestOutboxBroker
from nightmail.annotations import OutboxMessage
from nightmail.errors import LeaseLost
from nightmail.outcome import Dead, Done, Retry
from tests.broker.support import Heard, Make, in_memory, soon, started

AT_ONCE = ConstantRetry(delay=0, jitter=0, max_attempts=2)


async def bury(broker: OutboxBroker, heard: Heard, *bodies: str, **options: Any) -> list[int]:
    """Publish these to the queue `orders`, whose handler rejects them; the ids of the letters, oldest first."""
    before = len(heard.outcomes)
    for body in bodies:
        await broker.publish(body, "orders", **options)
        before += 1
        await heard.until(lambda: len(heard.outcomes) >= before)  # noqa: B023 - waited for right here
    return [letter.id for letter in reversed(await broker.dead_letters("orders"))]


def rejecting(make: Make, **options: Any) -> OutboxBroker:
    """A broker whose handler of `orders` rejects everything, with the body as the reason."""
    broker = make(**options)

    @broker.subscriber("orders", max_workers=1)
    async def reject(body: str, msg: OutboxMessage) -> None:
        await msg.reject(body)

    return broker


async def test_a_subscriber_of_dead_letters_is_told_why_and_what_it_handled_is_gone(
    make: Make, heard: Heard
) -> None:
    broker, handled = make(), asyncio.Event()
    seen: dict[str, Any] = {}

    @broker.subscriber("orders", retry=NoRetry())
    async def fail(body: str) -> None:
        raise RuntimeError("no tea left")

    @broker.subscriber("orders", dead_letters=True)
    async def bemoan(body: str, msg: OutboxMessage) -> None:
        assert msg.dead is not None
        seen.update(
            body=body,
            queue=msg.queue,
            attempt=msg.attempt,
            reason=msg.dead.reason,
            error=msg.dead.error,
            message_id=msg.dead.message_id,
            timer_id=msg.timer_id,
            colour=msg.headers["colour"],
        )
        handled.set()

    async with started(broker):
        sent = await broker.publish("tea", "orders", timer_id="t", headers={"colour": "green"})
        await soon(handled)
        await heard.until(lambda: Done() in [outcome for _, outcome in heard.outcomes])
        assert await broker.dead_letters() == []

    assert seen == {
        "body": "tea",
        "queue": "orders",
        "attempt": 1,
        "reason": "retries_exhausted",
        "error": "RuntimeError('no tea left')",
        "message_id": sent,
        "timer_id": "t",
        "colour": "green",
    }


async def test_a_letter_whose_handler_fails_too_stays_and_is_offered_no_more(
    make: Make, heard: Heard
) -> None:
    broker, runs = rejecting(make), []

    @broker.subscriber("orders", dead_letters=True, retry=AT_ONCE)
    async def bemoan(body: str, msg: OutboxMessage) -> None:
        runs.append(msg.attempt)
        raise RuntimeError("and again")

    async with started(broker):
        await broker.publish("no tea", "orders")
        await heard.until(lambda: len(heard.outcomes) == 3)
        (letter,) = await broker.dead_letters("orders")
        assert await broker.redrive("orders", to="elsewhere") == 1

    assert runs == [1, 2]
    assert (letter.reason, letter.error, letter.attempts) == ("no tea", None, 1)
    endings = [outcome for _, outcome in heard.outcomes]
    assert endings[0] == Dead("no tea")
    assert endings[1] == Retry()
    assert isinstance(endings[2], Dead)


@in_memory
async def test_a_letter_keeps_the_error_although_the_handler_had_said_when_to_try_again(
    make: Make, heard: Heard
) -> None:
    broker = make(retry=NoRetry())

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.nack(delay=5)
        raise ValueError("no such customer")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))
        (letter,) = await broker.dead_letters("q")

    assert letter.error == "ValueError('no such customer')"


async def test_a_reason_of_several_lines_is_whole_in_the_letter() -> None:
    broker = OutboxBroker("memory://", logger=None)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.reject("spam\nCRITICAL all is lost")

    tb = TestOutboxBroker(broker)
    async with tb:
        await broker.publish("tea", "q")
        (letter,) = await tb.dead_letters()

    assert letter.reason == "spam\nCRITICAL all is lost"


async def test_letters_are_found_by_every_filter_and_page_by_page(make: Make, heard: Heard) -> None:
    broker = rejecting(make)
    async with started(broker):
        first, second, third = await bury(broker, heard, "no tea", "no milk", "no sugar")

        async def found(**which: Any) -> list[int]:
            return [letter.id for letter in await broker.dead_letters("orders", **which)]

        assert await found() == [third, second, first]
        assert await found(limit=2) == [third, second]
        assert await found(limit=2, cursor=second) == [first]
        assert await found(reason="no milk") == [second]
        assert await found(error="milk") == []
        assert await found(ids=(first, third)) == [third, first]
        assert await found(older_than=timedelta(hours=1)) == []
        assert await broker.dead_letters("elsewhere") == []


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize(
    "which",
    [{"ids": ()}, {"queue": "q", "ids": []}, {"reason": ""}, {"error": "%"}],
    ids=["no ids", "no ids of a queue", "an empty reason", "a wildcard"],
)
async def test_a_filter_that_fits_no_letter_means_none_and_not_all(
    make: Make, heard: Heard, which: dict[str, Any]
) -> None:
    broker = make(retry=NoRetry())

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        raise RuntimeError

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

        assert await broker.dead_letters(**which) == []
        assert await broker.redrive(**which) == 0
        assert await broker.purge_dead(**which) == 0
        assert len(await broker.dead_letters()) == 1


async def test_a_redriven_letter_is_a_new_message_that_knows_where_it_comes_from(
    make: Make, heard: Heard
) -> None:
    broker, arrived = rejecting(make), asyncio.Event()
    got: dict[str, Any] = {}

    @broker.subscriber("again")
    async def take(body: str, msg: OutboxMessage) -> None:
        got.update(body=body, attempt=msg.attempt, headers=dict(msg.headers))
        arrived.set()

    async with started(broker):
        (letter,) = await bury(broker, heard, "no tea", headers={"colour": "green"})
        assert await broker.redrive("orders", to="again") == 1
        await soon(arrived)
        assert await broker.dead_letters() == []

    assert (got["body"], got["attempt"]) == ("no tea", 1)
    assert got["headers"]["colour"] == "green"
    assert got["headers"]["nightmail-dead-letter"] == str(letter)
    assert got["headers"]["nightmail-died-in"] == "orders"
    assert got["headers"]["nightmail-dead-reason"] == "no tea"


async def test_redriving_takes_a_limit_and_goes_oldest_first(make: Make, heard: Heard) -> None:
    broker = rejecting(make)
    async with started(broker):
        *_, third = await bury(broker, heard, "a", "b", "c")

        assert await broker.redrive("orders", to="again", limit=2) == 2
        assert [letter.id for letter in await broker.dead_letters()] == [third]
        assert [waiting.body for waiting in await broker.pending("again")] == [b"a", b"b"]


async def test_a_letter_whose_name_is_taken_stays_and_is_not_counted(make: Make, heard: Heard) -> None:
    broker = rejecting(make)
    async with started(broker):
        await bury(broker, heard, "a", timer_id="t")
        await broker.publish("newer", "again", timer_id="t", activate_in=3600)

        assert await broker.redrive("orders", to="again") == 0
        assert len(await broker.dead_letters()) == 1
        assert await broker.redrive("orders", to="again", keep_timer_ids=False) == 1
        assert await broker.dead_letters() == []


async def test_a_subscriber_of_dead_letters_keeps_redrive_and_purge_away_from_what_it_has(
    make: Make, heard: Heard
) -> None:
    broker, running, go_on = rejecting(make), asyncio.Event(), asyncio.Event()

    @broker.subscriber("orders", dead_letters=True)
    async def bemoan(body: str) -> None:
        running.set()
        await go_on.wait()

    async with started(broker):
        await broker.publish("no tea", "orders")
        await soon(running)
        assert await broker.redrive("orders") == 0
        assert await broker.purge_dead("orders") == 0
        go_on.set()
        await heard.until(lambda: len(heard.outcomes) == 2)
        assert await broker.dead_letters() == []


async def test_purging_deletes_what_is_meant_and_nothing_else(make: Make, heard: Heard) -> None:
    broker = rejecting(make)
    async with started(broker):
        *_, third = await bury(broker, heard, "a", "b", "c")

        assert await broker.purge_dead("orders", reason="b") == 1
        assert await broker.purge_dead("orders", limit=1) == 1
        assert [letter.id for letter in await broker.dead_letters()] == [third]
        assert await broker.purge_dead(everything=True) == 1


@in_memory
async def test_a_careless_call_is_refused(make: Make) -> None:
    async with make() as broker:
        with pytest.raises(ValueError, match="everything=True"):
            await broker.redrive()
        with pytest.raises(ValueError, match="everything=True"):
            await broker.purge_dead()
        with pytest.raises(TypeError, match="did you mean 'reason'"):
            await broker.purge_dead(reson="rejected")  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="limit"):
            await broker.redrive("q", limit=0)
        with pytest.raises(ValueError, match="rate"):
            await broker.redrive("q", rate=0)
        with pytest.raises(ValueError, match="queue"):
            await broker.redrive("q", to="")


async def test_a_letter_can_be_kept_for_longer_and_one_that_was_lost_says_so(
    make: Make, heard: Heard
) -> None:
    broker, told = rejecting(make), asyncio.Event()

    @broker.subscriber("orders", dead_letters=True)
    async def bemoan(body: str, msg: OutboxMessage) -> None:
        await msg.extend(3600)
        await msg.ack()
        token = msg.delivery.token
        msg.delivery.token = type(token)(int=0)  # As a worker that was taken over.
        with pytest.raises(LeaseLost):
            await msg.extend(3600)
        msg.delivery.token = token
        told.set()

    async with started(broker):
        await broker.publish("no tea", "orders")
        await soon(told)
        await heard.until(lambda: len(heard.outcomes) == 2)


async def test_dead_letters_are_counted_by_cause_and_a_message_is_found_by_its_id(
    make: Make, heard: Heard
) -> None:
    broker = rejecting(make)

    async with started(broker):
        await bury(broker, heard, "no order 7", "no order 8")
        later = await broker.publish("tea", "orders", activate_in=60)
        summary = await broker.summarize_dead("orders")

        assert later is not None
        assert [(found.id, found.running) for found in await broker.find(later, later + 1)] == [
            (later, False)
        ]
        assert (summary.count, [group.reason for group in summary.groups]) == (
            2,
            ["no order 8", "no order 7"],
        )
        assert (await broker.summarize_dead(reason="no order 7")).count == 1
        with pytest.raises(ValueError, match="limit must be at least 1"):
            await broker.summarize_dead(limit=0)
