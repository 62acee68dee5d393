"""Settling: nothing leaves the worker's hands before the store has answered for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from nightmail.engine import settling
from nightmail.engine.finished import Finished
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery, Message
from nightmail.outcome import Done, Outcome, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import Call, FaultyStore, Gate, lost_reply, lost_request
from tests.unit.support import (
    MINUTE,
    QUEUE,
    Handler,
    Seen,
    at_work,
    delivery,
    ids,
    publish,
    publish_timer,
    soon,
    take,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again soon."""
    monkeypatch.setattr(settling, "BUSY_SECONDS", 0.01)
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)


@pytest.fixture
def other(data: MemoryData, clock: ManualClock) -> MemoryStore:
    """The same messages, seen by another process."""
    return MemoryStore(data, clock=clock)


async def test_a_settlement_whose_request_was_lost_is_written_later(store: FaultyStore, seen: Seen) -> None:
    published = await publish(store, 3)
    store.upset("settle", lost_request, times=4)

    await soon(Worker(store, Handler(), queues=[QUEUE], observer=seen).run_until_idle())

    assert seen.outcomes == [(id_, Done()) for id_ in published]
    assert store.calls["settle"] == 5
    assert (seen.lost, seen.uncertainties) == ([], [])
    assert await store.stats() == {}


async def test_a_settlement_whose_reply_was_lost_is_uncertain_and_not_a_lost_lease(
    store: FaultyStore, seen: Seen
) -> None:
    published = await publish(store, 3)
    store.upset("settle", lost_reply)
    handler = Handler()

    worker = Worker(store, handler, queues=[QUEUE], observer=seen)
    await soon(worker.run_until_idle())

    assert [each.delivery.id for each in seen.uncertainties] == published
    assert {each.repeated for each in seen.uncertainties} == {True}
    assert seen.lost == []
    assert len(handler.deliveries) == 3
    assert worker.in_hand == 0
    assert await store.stats() == {}


async def test_only_what_was_asked_before_counts_as_asked_before(store: FaultyStore, seen: Seen) -> None:
    batches: list[list[tuple[int, bool]]] = []

    class Noting(FaultyStore):
        async def settle(self, batch: Any) -> list[WriteResult]:
            batches.append([(each.delivery.id, each.repeated) for each in batch])
            return await super().settle(batch)

    noting = Noting(store)
    await publish(noting, 2)
    gate = noting.upset("settle", Gate())
    noting.upset("settle", lost_request)
    settings = WorkerSettings(max_workers=1)
    async with at_work(Worker(noting, Handler(), queues=[QUEUE], settings=settings, observer=seen)):
        await soon(gate.reached.wait())
        await publish(noting)
        gate.open()
        await seen.until_settled(3)

    assert batches == [[(1, False)], [(2, False), (3, False)], [(2, True), (3, True)]]


async def test_a_lost_lease_is_told_of_and_nothing_is_written(
    store: FaultyStore, other: MemoryStore, clock: ManualClock, seen: Seen
) -> None:
    handler = Handler(held=True)
    [published] = await publish(store)
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await handler.until_running(1)
        clock.advance(MINUTE)
        [taken_over] = await take(other)
        handler.let_go()
        await seen.until(lambda: bool(seen.lost))

    assert taken_over.deliveries == 2
    assert seen.lost == [published]
    assert seen.outcomes == []
    # It is the other's to settle, and that still works.
    assert await other.settle([Settlement(taken_over, Retry())]) == [WriteResult.WRITTEN]


async def test_a_lease_that_expired_but_was_not_taken_over_still_settles(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    handler = Handler(held=True)
    [published] = await publish(store)
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await handler.until_running(1)
        clock.advance(MINUTE * 10)
        handler.let_go()
        await seen.until_settled(1)

    assert seen.outcomes == [(published, Done())]
    assert seen.lost == []


async def test_one_lost_lease_does_not_disturb_its_neighbours(store: FaultyStore, seen: Seen) -> None:
    async def second_is_lost(call: Call) -> list[WriteResult]:
        answers: list[WriteResult] = await call()
        answers[1] = WriteResult.LOST
        return answers

    published = await publish(store, 3)
    store.upset("settle", second_is_lost)
    await soon(Worker(store, Handler(), queues=[QUEUE], observer=seen).run_until_idle())

    assert seen.outcomes == [(published[0], Done()), (published[2], Done())]
    assert seen.lost == [published[1]]


async def test_a_message_locked_by_an_open_transaction_is_asked_for_again_until_it_is_free(
    store: FaultyStore, data: MemoryData, other: MemoryStore, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> Outcome | None:
        return Retry(MINUTE) if delivery.body == b"locked" else None

    locked = await publish_timer(store, "daily", body=b"locked")
    [free] = await publish(store)
    handler = Handler(held=True)

    async def held_then_handled(delivery: Delivery) -> Outcome | None:
        await handler(delivery)
        return await handle(delivery)

    worker = Worker(store, held_then_handled, queues=[QUEUE], observer=seen)
    async with at_work(worker):
        await handler.until_running(2)
        async with data.transaction() as transaction:
            replacement = await publish_timer_in(other, transaction)
            handler.let_go()
            await store.until_called("settle", times=4)
            # The neighbour is written, the locked one stays in hand and is not called lost.
            assert seen.outcomes == [(free, Done())]
            assert worker.in_hand == 1
        await seen.until_settled(2)

    assert seen.outcomes[-1] == (locked, Retry(MINUTE))
    assert seen.lost == []
    assert replacement != locked


async def publish_timer_in(store: MemoryStore, transaction: object) -> int | None:
    """Replace the timer in a transaction that stays open: the running message is locked by it."""
    message = Message(queue=QUEUE, body=b"new", timer_id="daily", on_conflict="replace", due=MINUTE)
    return await store.publish(message, transaction=transaction)


async def test_stopping_waits_for_a_message_that_is_locked_for_a_moment(
    store: FaultyStore, seen: Seen
) -> None:
    async def busy(call: Call) -> list[WriteResult]:
        return [WriteResult.BUSY]

    [published] = await publish(store)
    store.upset("settle", busy, times=3)
    handler = Handler()
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await store.until_called("settle")

    assert seen.outcomes == [(published, Done())]
    assert seen.left == [0]


async def test_a_message_that_is_busy_is_not_handled_again(store: FaultyStore, seen: Seen) -> None:
    async def busy(call: Call) -> list[WriteResult]:
        return [WriteResult.BUSY]

    await publish(store)
    store.upset("settle", busy, times=3)
    handler = Handler()

    await soon(Worker(store, handler, queues=[QUEUE], observer=seen).run_until_idle())

    assert len(handler.deliveries) == 1
    assert store.calls["settle"] == 4


# ── what waits to be written ──────────────────────────────────────────────────────────────────────────────


def finished(count: int) -> tuple[Finished, list[Settlement]]:
    """So many, finished in order."""
    box = Finished()
    settlements = [Settlement(delivery(id=number), Done()) for number in range(1, count + 1)]
    for settlement in settlements:
        box.put(settlement)
    return box, settlements


def numbers(settlements: Iterable[Settlement]) -> list[int]:
    """Which messages these are."""
    return ids(each.delivery for each in settlements)


def test_the_oldest_come_first_and_stay_until_dropped() -> None:
    box, _ = finished(5)

    assert numbers(box) == [1, 2, 3, 4, 5]
    assert numbers(box) == [1, 2, 3, 4, 5]
    assert len(box) == 5
    box.drop_first(3)
    assert numbers(box) == [4, 5]


def test_what_was_asked_before_says_so_and_keeps_its_place() -> None:
    box, settlements = finished(3)

    box.ask_again(settlements[:2])

    assert [(each.delivery.id, each.repeated) for each in box] == [(1, True), (2, True), (3, False)]


def test_what_is_put_back_goes_behind_all_others() -> None:
    box, settlements = finished(3)

    box.drop_first(2)
    box.put_all(settlements[:1])

    assert numbers(box) == [3, 1]


@pytest.mark.parametrize("wait", [Finished.wait_some, Finished.wait_none])
async def test_waiting_ends_when_it_has_come_true(wait: Callable[[Finished], Any]) -> None:
    box, settlements = finished(1)
    if wait is Finished.wait_some:
        box.drop_first(1)

    waiting = asyncio.ensure_future(wait(box))
    await asyncio.sleep(0)
    assert not waiting.done()
    if wait is Finished.wait_some:
        box.put(settlements[0])
    else:
        box.drop_first(1)
    await soon(waiting)


async def test_everything_is_not_written_while_something_was_put_back() -> None:
    box, settlements = finished(2)
    waiting = asyncio.ensure_future(box.wait_none())
    await asyncio.sleep(0)

    box.drop_first(2)
    box.put_all(settlements[1:])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()

    box.drop_first(1)
    await soon(waiting)
