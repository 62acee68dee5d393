"""A decision counts when it is called, awaited or not; what does I/O and was not awaited is never taken for done."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail import ExponentialRetry, LeaseLost, OutboxBroker, SyncPublisher
from nightmail.annotations import OutboxBatchMessage, OutboxMessage
from nightmail.outcome import Dead, Done, Outcome, Postpone, Retry
from tests.broker.support import Heard, Make, in_memory, on_sqlite, started

LATER = timedelta(hours=1)

DECISIONS = {
    "ack": (lambda msg: msg.ack(), Done()),
    "nack": (lambda msg: msg.nack(delay=LATER), Retry(LATER)),
    "reject": (lambda msg: msg.reject("bad"), Dead("bad")),
    "postpone": (lambda msg: msg.postpone(LATER), Postpone(LATER)),
}
every_decision = pytest.mark.parametrize(("give", "meant"), DECISIONS.values(), ids=DECISIONS)


@every_decision
@in_memory
async def test_a_decision_in_a_def_handler_counts(
    make: Make, heard: Heard, give: Any, meant: Outcome
) -> None:
    broker = make()

    @broker.subscriber("q")
    def handle(n: int, msg: OutboxMessage) -> None:
        give(msg)

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [meant]


@every_decision
@in_memory
async def test_a_decision_that_was_not_awaited_counts(
    make: Make, heard: Heard, give: Any, meant: Outcome
) -> None:
    broker = make()

    @broker.subscriber("q")
    async def handle(n: int, msg: OutboxMessage) -> None:
        give(msg)

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))
    gc.collect()

    assert heard.of(sent) == [meant]


@every_decision
@in_memory
async def test_a_decision_may_still_be_awaited_gathered_or_made_a_task(
    make: Make, heard: Heard, give: Any, meant: Outcome
) -> None:
    broker, ways = make(), iter(["await", "gather", "task"])

    @broker.subscriber("q")
    async def handle(n: int, msg: OutboxMessage) -> None:
        way = next(ways)
        if way == "await":
            assert await give(msg) is None
        elif way == "gather":
            await asyncio.gather(give(msg))
        else:
            await asyncio.create_task(give(msg))

    async with started(broker):
        sent = [await broker.publish(n, "q") for n in range(3)]
        await heard.until(lambda: all(heard.of(each) for each in sent))

    assert [heard.of(each) for each in sent] == [[meant]] * 3


@every_decision
@pytest.mark.parametrize("kind", ["def", "async def"])
@in_memory
async def test_a_decision_on_a_batch_counts_without_being_awaited(
    make: Make, heard: Heard, give: Any, meant: Outcome, kind: str
) -> None:
    broker = make()

    def in_thread(ns: list[int], msg: OutboxBatchMessage) -> None:
        give(msg)

    async def on_loop(ns: list[int], msg: OutboxBatchMessage) -> None:
        give(msg)

    broker.subscriber("q", batch=True)(in_thread if kind == "def" else on_loop)

    async with started(broker):
        sent = await broker.publish_batch(1, 2, queue="q")
        await heard.until(lambda: all(heard.of(each) for each in sent))

    assert [heard.of(each) for each in sent] == [[meant], [meant]]


@on_sqlite
@pytest.mark.parametrize("batch", [False, True])
async def test_an_ack_in_a_transaction_that_was_never_awaited_is_a_failure(
    url: str, make: Make, heard: Heard, batch: bool
) -> None:
    engine = create_async_engine(url.replace("sqlite://", "sqlite+aiosqlite://"))
    broker = make(retry=ExponentialRetry(initial=LATER))

    async def one(n: int, msg: OutboxMessage) -> None:
        async with engine.begin() as connection:
            _ = msg.ack(session=connection)

    async def many(ns: list[int], msg: OutboxBatchMessage) -> None:
        async with engine.begin() as connection:
            _ = msg.ack(session=connection)

    broker.subscriber("q", batch=batch)(many if batch else one)

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))
    await engine.dispose()

    assert [type(outcome) for outcome in heard.of(sent)] == [Retry]
    assert heard.errors == ["NotAwaited"]


@in_memory
async def test_what_a_def_handler_cannot_await_is_refused_with_a_word_on_what_to_use(
    make: Make, heard: Heard
) -> None:
    broker, refusals = make(), []
    publisher = broker.publisher("elsewhere")
    offered = [
        lambda: broker.publish("x", "elsewhere"),
        lambda: broker.publish_batch("x", queue="elsewhere"),
        lambda: publisher.publish("x"),
        lambda: broker.cancel_timer("elsewhere", "t"),
        lambda: broker.reschedule_timer("elsewhere", "t", activate_in=1),
    ]
    not_offered = [
        lambda: broker.cancel_all("elsewhere"),
        lambda: broker.redrive("elsewhere"),
        lambda: broker.purge_dead("elsewhere"),
        lambda: broker.dead_letters("elsewhere"),
        broker.stats,
    ]

    @broker.subscriber("q")
    def handle(n: int) -> None:
        for forget in offered + not_offered:
            try:
                _ = forget()
            except RuntimeError as error:
                refusals.append(str(error))

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert ["SyncPublisher" in refusal for refusal in refusals] == [True] * 5 + [False] * 5
    assert all("`async def`" in refusal for refusal in refusals)


async def test_a_def_handler_publishes_with_a_sync_publisher_and_no_session(make: Make, heard: Heard) -> None:
    broker, got = make(), []
    publisher = SyncPublisher(broker)

    @broker.subscriber("q")
    def handle(n: int) -> None:
        assert publisher.publish(n + 1, "next") is not None
        assert len(publisher.publish_batch(n + 2, n + 3, queue="next")) == 2
        publisher.publish("later", "timers", timer_id="t", activate_in=LATER)
        assert publisher.reschedule_timer("timers", "t", activate_in=2 * LATER)
        assert publisher.cancel_timer("timers", "t")
        assert not publisher.cancel_timer("timers", "t")

    @broker.subscriber("next")
    async def take(n: int) -> None:
        got.append(n)

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: heard.of(sent) == [Done()] and len(got) == 3)

    assert sorted(got) == [2, 3, 4]


@in_memory
async def test_outside_of_a_handler_a_sync_publisher_needs_a_session(make: Make) -> None:
    async with make() as broker:
        with pytest.raises(ValueError, match="session is missing"):
            SyncPublisher(broker).publish(1, "q")
        with pytest.raises(ValueError, match="session is missing"):
            SyncPublisher(broker).cancel_timer("q", "t")


@in_memory
async def test_a_def_handler_that_returns_a_coroutine_has_failed(make: Make, heard: Heard) -> None:
    broker = make(retry=ExponentialRetry(initial=LATER))

    async def work() -> None:
        """Never awaited."""

    @broker.subscriber("q")
    def handle(n: int) -> Any:
        return work()

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert [type(outcome) for outcome in heard.of(sent)] == [Retry]
    assert heard.errors == ["NotAwaited"]


@in_memory
async def test_a_def_handler_may_return_what_a_decision_returns(make: Make, heard: Heard) -> None:
    broker = make()

    @broker.subscriber("q")
    def handle(n: int, msg: OutboxMessage) -> Any:
        return msg.reject("bad")

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: heard.of(sent) == [Dead("bad")])


async def test_a_def_handler_extends_its_lease_at_once(make: Make, heard: Heard) -> None:
    broker, errors = make(), []

    @broker.subscriber("q")
    def handle(n: int, msg: OutboxMessage) -> None:
        try:
            _ = msg.extend(LATER)
        except LeaseLost as error:
            errors.append(error)

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert errors == []


@in_memory
async def test_a_bad_decision_raises_where_it_is_made(make: Make, heard: Heard) -> None:
    broker, errors = make(), []

    @broker.subscriber("q")
    def handle(n: int, msg: OutboxMessage) -> None:
        try:
            _ = msg.postpone("soon")  # type: ignore[arg-type]
        except TypeError as error:
            errors.append(error)
        _ = msg.reject("bad")

    async with started(broker):
        sent = await broker.publish(1, "q")
        await heard.until(lambda: heard.of(sent) == [Dead("bad")])

    assert len(errors) == 1


def test_publish_is_still_known_for_a_coroutine_function() -> None:
    assert asyncio.iscoroutinefunction(OutboxBroker("memory://").publish)
