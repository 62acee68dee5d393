"""A worker runs handlers, so many at once, and can be started, stopped and started again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest

from nightmail.engine.queues import check_queues
from nightmail.engine.runners import TURN_SECONDS
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import Call, FaultyStore, Gate, lost_reply
from tests.unit.support import QUEUE, Handler, Seen, a_few_steps, at_work, publish, soon

THREE = WorkerSettings(max_workers=3)


async def test_every_message_is_handled_once_and_leaves_the_store(store: FaultyStore, seen: Seen) -> None:
    published = await publish(store, 25)
    handler = Handler()

    await soon(Worker(store, handler, queues=[QUEUE], observer=seen).run_until_idle())

    assert sorted(delivery.id for delivery in handler.deliveries) == published
    assert sorted(seen.outcomes) == [(id_, Done()) for id_ in published]
    assert await store.stats() == {}


async def test_as_many_handlers_run_at_once_as_asked_for_and_never_more(
    store: FaultyStore, seen: Seen
) -> None:
    await publish(store, 20)
    handler = Handler(held=True)

    async with at_work(Worker(store, handler, queues=[QUEUE], settings=THREE, observer=seen)):
        await handler.until_running(3)
        await a_few_steps()
        assert handler.running == 3
        handler.let_go()
        await seen.until_settled(20)

    assert handler.most == 3


async def test_a_free_slot_is_filled_while_the_other_handlers_still_run(
    store: FaultyStore, seen: Seen
) -> None:
    hold = asyncio.Event()
    bodies: list[bytes] = []

    async def first_one_hangs(delivery: Delivery) -> None:
        bodies.append(delivery.body)
        if delivery.body == b"0":
            await hold.wait()

    await publish(store, 5)
    async with at_work(
        Worker(store, first_one_hangs, queues=[QUEUE], settings=WorkerSettings(max_workers=2), observer=seen)
    ):
        await seen.until_settled(4)
        assert bodies == [b"0", b"1", b"2", b"3", b"4"]
        hold.set()
        await seen.until_settled(5)


async def test_a_message_published_while_idle_is_delivered_without_waiting_for_the_next_look(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler()
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await store.until_called("claim")
        [published] = await publish(store)
        await seen.until_settled(1)

    assert seen.outcomes == [(published, Done())]
    assert seen.wakes == 1


async def test_several_queues_are_served_by_one_worker(store: FaultyStore, seen: Seen) -> None:
    [letter] = await publish(store, queue="letters")
    [parcel] = await publish(store, queue="parcels")
    await publish(store, queue="others")
    handler = Handler()

    await soon(Worker(store, handler, queues=["letters", "parcels"], observer=seen).run_until_idle())

    assert sorted(delivery.id for delivery in handler.deliveries) == [letter, parcel]


async def test_running_twice_at_once_is_refused(store: FaultyStore) -> None:
    worker = Worker(store, Handler(), queues=[QUEUE])
    async with at_work(worker):
        assert worker.is_running
        with pytest.raises(RuntimeError, match="already running"):
            await worker.run()
        with pytest.raises(RuntimeError, match="already running"):
            await worker.run_until_idle()
        assert worker.is_running

    assert not worker.is_running


async def test_a_stopped_worker_runs_again(store: FaultyStore, seen: Seen) -> None:
    handler = Handler()
    worker = Worker(store, handler, queues=[QUEUE], observer=seen)

    for expected in (1, 2, 3):
        async with at_work(worker):
            await publish(store)
            await seen.until_settled(expected)

    assert len(handler.deliveries) == 3
    assert seen.left == [0, 0, 0]


async def test_stopping_a_worker_that_never_ran_returns_at_once_and_spoils_nothing(
    store: FaultyStore, seen: Seen
) -> None:
    worker = Worker(store, Handler(), queues=[QUEUE], observer=seen)
    await soon(worker.stop())
    assert not worker.is_running

    await publish(store)
    async with at_work(worker):
        await seen.until_settled(1)


async def test_stopping_twice_at_once_waits_twice_for_the_same_end(store: FaultyStore, seen: Seen) -> None:
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], observer=seen)
    await publish(store)
    async with at_work(worker):
        await handler.until_running(1)
        stops = [asyncio.create_task(worker.stop()), asyncio.create_task(worker.stop())]
        await a_few_steps()
        assert not any(stop.done() for stop in stops)
        handler.let_go()
        await soon(asyncio.gather(*stops))

    assert seen.left == [0]


async def test_what_is_in_hand_is_counted_until_it_is_settled(store: FaultyStore, seen: Seen) -> None:
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], settings=THREE, observer=seen)
    await publish(store, 3)
    gate = store.upset("settle", Gate())
    async with at_work(worker):
        await handler.until_running(3)
        assert worker.in_hand == 3
        handler.let_go()
        await soon(gate.reached.wait())
        assert worker.in_hand == 3
        gate.open()
        await seen.until_settled(3)
        assert worker.in_hand == 0


async def test_working_until_idle_ends_when_nothing_is_due(store: FaultyStore, seen: Seen) -> None:
    await publish(store, 3)
    [later] = await publish(store, due=timedelta(minutes=5))
    handler = Handler()

    await soon(Worker(store, handler, queues=[QUEUE], observer=seen).run_until_idle())

    assert len(handler.deliveries) == 3
    assert [pending.id for pending in await store.peek()] == [later]


async def test_working_until_idle_takes_what_its_handlers_publish(store: FaultyStore, seen: Seen) -> None:
    bodies: list[bytes] = []

    async def count_down(delivery: Delivery) -> None:
        bodies.append(delivery.body)
        if (left := int(delivery.body)) > 0:
            await publish(store, body=b"%d" % (left - 1))

    await publish(store, body=b"3")
    await soon(Worker(store, count_down, queues=[QUEUE], observer=seen).run_until_idle())

    assert bodies == [b"3", b"2", b"1", b"0"]


async def test_working_until_idle_takes_what_it_retries_at_once(store: FaultyStore, seen: Seen) -> None:
    async def third_time_lucky(delivery: Delivery) -> Retry | None:
        return None if delivery.attempt == 3 else Retry()

    [published] = await publish(store)
    await soon(Worker(store, third_time_lucky, queues=[QUEUE], observer=seen).run_until_idle())

    assert seen.of(published) == [Retry(), Retry(), Done()]


async def test_working_until_idle_on_an_empty_store_asks_once(store: FaultyStore) -> None:
    await soon(Worker(store, Handler(), queues=[QUEUE]).run_until_idle())

    assert store.calls == {"claim": 1}


async def test_working_until_idle_leaves_alone_what_another_process_holds(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    await publish(store)
    held = Handler(held=True)
    handler = Handler()
    async with at_work(Worker(store, held, queues=[QUEUE])):
        await held.until_running(1)
        await soon(Worker(store, handler, queues=[QUEUE], observer=seen).run_until_idle())
        assert handler.deliveries == []
        held.let_go()


async def test_an_observer_that_raises_costs_events_and_no_messages(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)

    class Broken(Seen):
        def claimed(self, deliveries: Sequence[Delivery]) -> None:
            super().claimed(deliveries)
            raise RuntimeError("no disk space for metrics")

        def settled(self, settlements: Sequence[Settlement]) -> None:
            super().settled(settlements)
            raise RuntimeError("no disk space for metrics")

    async def first_is_busy(call: Call) -> list[WriteResult]:
        answers: list[WriteResult] = await call()
        return [WriteResult.BUSY, *answers[1:]]

    broken = Broken()
    handler = Handler()
    worker = Worker(store, handler, queues=[QUEUE], observer=broken)
    await publish(store, 30)
    store.upset("claim", lost_reply)
    store.upset("settle", first_is_busy)

    await soon(worker.run_until_idle())

    assert len(handler.deliveries) == 30
    assert await store.stats() == {}
    assert worker.in_hand == 0


@pytest.mark.parametrize(
    ("queues", "error", "message"),
    [
        ("mail", TypeError, "list of names, not one str"),
        ([], ValueError, "at least one queue"),
        (["mail", ""], ValueError, "queue must not be empty"),
        (["mail", "post", "mail"], ValueError, "named twice: mail, post, mail"),
    ],
)
def test_queues_that_cannot_be_are_refused(queues: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_queues(queues)


def test_queues_keep_their_order() -> None:
    assert check_queues(["b", "a"]) == ("b", "a")


async def test_a_handler_that_awaits_nothing_leaves_others_their_turn(store: FaultyStore) -> None:
    await publish(store, 50)
    turns = 0
    seen_by_handler: list[int] = []

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def handle(delivery: Delivery) -> None:
        seen_by_handler.append(turns)
        time.sleep(2 * TURN_SECONDS)  # Busy for longer than its turn, and awaiting nothing.

    counting = asyncio.create_task(count_turns())
    await Worker(store, handle, queues=[QUEUE], settings=WorkerSettings(max_workers=1)).run_until_idle()
    counting.cancel()

    # One message after the other, and another task in between each time.
    assert len(set(seen_by_handler)) == 50
