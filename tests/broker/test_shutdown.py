"""Stopping a broker: during its start, twice at once, without patience, or when the store does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import anyio
import pytest
from faststream import AckPolicy
from faststream.exceptions import StopConsume

from nightmail import OutboxBroker
from nightmail.annotations import OutboxBatchMessage
from nightmail.broker import broker as broker_module
from nightmail.errors import LeaseLost
from nightmail.outcome import Done, Release, Retry
from nightmail.retry import ConstantRetry
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.broker.support import Heard, Make, one_or_many, soon, started

TEN_MINUTES = timedelta(minutes=10)
LATER = ConstantRetry(delay=TEN_MINUTES, jitter=0.0)


@pytest.fixture
def url() -> str:
    """These are about the broker: one store is enough."""
    return "memory://"


async def test_a_stop_that_is_cancelled_still_writes_what_has_ended_before_it_closes_the_store(
    make: Make, heard: Heard
) -> None:
    broker = make()
    running, finish, closed_after = asyncio.Event(), asyncio.Event(), []
    close = broker.store.close

    async def closing() -> None:
        closed_after.append(list(heard.outcomes))
        await close()

    broker.store.close = closing  # type: ignore[method-assign]

    @broker.subscriber("q")
    async def take(body: str) -> None:
        if body == "short":
            await finish.wait()
            return
        running.set()
        await asyncio.Event().wait()

    await broker.start()
    short = await broker.publish("short", "q")
    long = await broker.publish("long", "q")
    await soon(running)
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)
    finish.set()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping

    assert heard.of(short) == [Done()]
    assert heard.of(long) == [Release()]
    assert [sorted(ids) for ids in closed_after] == [sorted(heard.outcomes)]


async def test_a_store_that_does_not_close_is_left_behind(
    make: Make, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "CLOSE_SECONDS", 0.05)
    broker, never = make(), asyncio.Event()

    async def hangs() -> None:
        while not never.is_set():
            try:
                await never.wait()
            except asyncio.CancelledError:
                continue

    broker.store.close = hangs  # type: ignore[method-assign]
    await broker.start()
    async with asyncio.timeout(10):
        await broker.stop()
    never.set()


async def test_a_stop_during_the_start_leaves_no_worker_running(make: Make, heard: Heard) -> None:
    broker, checking, go_on = make(), asyncio.Event(), asyncio.Event()
    check = broker.store.check

    async def slowly(*, adopt: bool = True) -> None:
        checking.set()
        await go_on.wait()
        await check(adopt=adopt)

    broker.store.check = slowly  # type: ignore[method-assign]
    runs: list[str] = []

    @broker.subscriber("q")
    async def take(body: str) -> None:
        runs.append(body)

    starting = asyncio.create_task(broker.start())
    await soon(checking)
    await broker.stop()
    go_on.set()
    await asyncio.gather(starting, return_exceptions=True)

    [subscriber] = broker.subscribers
    assert not subscriber.running
    assert not any("nightmail" in task.get_name() for task in asyncio.all_tasks())


async def test_a_start_that_is_cancelled_leaves_no_worker_running(make: Make) -> None:
    broker, second = make(), asyncio.Event()

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    @broker.subscriber("other")
    async def take_other(body: str) -> None: ...

    start = broker.subscribers[1].start

    async def never() -> None:
        second.set()
        await asyncio.Event().wait()
        await start()

    broker.subscribers[1].start = never  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(broker.start)
        await soon(second)
        tasks.cancel_scope.cancel()

    assert not any("nightmail" in task.get_name() for task in asyncio.all_tasks())


async def test_a_broker_that_is_stopped_twice_at_once_stops_and_can_be_started_again(
    make: Make, heard: Heard
) -> None:
    broker = make()

    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    for runs in (1, 2):
        await broker.start()
        await broker.publish("tea", "q")
        await heard.until(lambda runs=runs: len(heard.outcomes) == runs)  # type: ignore[misc]
        await asyncio.gather(broker.stop(), broker.stop())

    assert [outcome for _, outcome in heard.outcomes] == [Done(), Done()]


class CountsDrains(Heard):
    """Hears of the workers that have ended, too."""

    def __init__(self) -> None:
        super().__init__()
        self.drains = 0

    def drained(self, left: int) -> None:
        self.drains += 1
        self._news.set()


async def test_a_subscriber_started_again_while_its_last_worker_still_drains_is_stopped_with_the_broker(
    make: Make,
) -> None:
    heard, hold, running = CountsDrains(), asyncio.Event(), asyncio.Event()
    broker = make(observer=heard, retry=LATER)

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        if body == "stop":
            raise StopConsume
        running.set()
        await hold.wait()

    (subscriber,) = broker.subscribers
    await broker.start()
    slow = await broker.publish("slow", "q")
    await soon(running)
    stop = await broker.publish("stop", "q")
    await heard.until(lambda: heard.of(stop) == [Retry(TEN_MINUTES)])
    assert not subscriber.running
    await subscriber.start()
    hold.set()
    await heard.until(lambda: heard.of(slow) == [Done()] and heard.drains == 1)
    for _ in range(10):
        await asyncio.sleep(0)  # The task that stopped the first worker has its turn.

    await broker.stop()

    assert heard.drains == 2


def test_what_is_in_hand_goes_back_when_the_program_ends_with_an_error(heard: Heard) -> None:
    data = MemoryData()

    async def main() -> None:
        broker = OutboxBroker(MemoryStore(data), observer=heard, logger=None, max_workers=3)
        running = asyncio.Event()

        @broker.subscriber("q", ack_policy=AckPolicy.ACK)
        async def take(body: str) -> None:
            running.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ConnectionError("as a driver does") from None

        await broker.start()
        await broker.publish_batch(*"abcde", queue="q")
        await soon(running)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())

    async def afterwards() -> tuple[int, int]:
        stats = (await MemoryStore(data).stats())["q"]
        return stats.ready, stats.running

    assert asyncio.run(afterwards()) == (5, 0)


@pytest.mark.parametrize("policy", [AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.NACK_ON_ERROR])
@one_or_many
async def test_what_a_shutdown_interrupts_is_handed_back_whatever_a_driver_makes_of_the_cancellation(
    make: Make, heard: Heard, policy: AckPolicy, batch: bool
) -> None:
    broker, running = make(retry=LATER, graceful_timeout=0), asyncio.Event()

    @broker.subscriber("q", ack_policy=policy, batch=batch)
    async def handle(body: Any) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("the driver's word for it") from None

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await soon(running)

    assert heard.of(sent) == [Release()]
    assert heard.errors == []


# ── time-outs ──────────────────────────────────────────────────────────────────────────────────────────────


async def as_a_driver() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ConnectionError("as a driver does") from None


async def as_a_task_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(as_a_driver())
        await asyncio.Event().wait()


@pytest.mark.parametrize("wait", [as_a_driver, as_a_task_group])
@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR, AckPolicy.NACK_ON_ERROR])
async def test_no_policy_deletes_or_buries_what_timed_out(
    make: Make, heard: Heard, policy: AckPolicy, wait: Any
) -> None:
    broker = make(retry=LATER, handler_timeout=0.05)

    @broker.subscriber("q", ack_policy=policy)
    async def take(body: str) -> None:
        await wait()

    async with started(broker):
        sent = await broker.publish("a", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert [type(outcome) for outcome in heard.of(sent)] == [Retry]
    assert heard.errors == ["TimeoutError"]


async def test_a_batch_that_was_acknowledged_before_its_time_was_up_is_done(make: Make, heard: Heard) -> None:
    broker = make(retry=LATER, handler_timeout=0.05)

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str], msg: OutboxBatchMessage) -> None:
        await msg.ack()
        await asyncio.Event().wait()

    async with started(broker):
        sent = await broker.publish("a", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Done()]


# ── lost leases ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_lost_lease_of_another_message_is_an_error_like_any_other(make: Make, heard: Heard) -> None:
    broker = make(retry=LATER)

    @broker.subscriber("q", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def take(body: str) -> None:
        raise LeaseLost([4711])

    async with started(broker):
        sent = await broker.publish("a", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.lost == []
    assert [type(outcome).__name__ for outcome in heard.of(sent)] == ["Dead"]


async def test_of_a_batch_whose_lost_lease_was_swallowed_the_others_go_back_at_once(
    make: Make, heard: Heard
) -> None:
    broker, batches = make(retry=LATER), []

    @broker.subscriber("q", batch=True)
    async def take(bodies: list[str], msg: OutboxBatchMessage) -> None:
        batches.append(sorted(bodies))
        if len(batches) == 1:
            ack = msg.raw_message.store.ack
            msg.raw_message.store.ack = refused  # type: ignore[method-assign]
            try:
                await msg.ack(session=object())
            except LeaseLost:
                pass
            finally:
                msg.raw_message.store.ack = ack  # type: ignore[method-assign]

    async def refused(deliveries: Sequence[Any], *, transaction: object) -> None:
        raise LeaseLost([deliveries[0].id])

    async with broker:
        first, second = await broker.publish_batch("a", "b", queue="q")
        await broker.start()
        await heard.until(lambda: len(heard.of(second)) == 2)

    assert heard.lost == [first]
    assert heard.of(second) == [Release(), Done()]
    assert batches == [["a", "b"], ["b"]]


async def test_a_message_taken_when_anyio_cancels_is_handed_back(make: Make, heard: Heard) -> None:
    async with make() as broker:
        claim, carried_out, reply = broker.store.claim, asyncio.Event(), asyncio.Event()

        async def answered_late(*what: Any, **more: Any) -> Any:
            claimed = await claim(*what, **more)
            carried_out.set()
            await reply.wait()
            return claimed

        broker.store.claim = answered_late  # type: ignore[method-assign]
        sent = await broker.publish("tea", "q")
        subscriber = broker.subscriber("q")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(subscriber.get_one)
            await soon(carried_out)
            tasks.cancel_scope.cancel()
            asyncio.get_running_loop().call_soon(reply.set)

        assert (await broker.stats())["q"].running == 0
        assert heard.of(sent) == [Release()]
