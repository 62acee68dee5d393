"""A message that an operator wants stopped: its handler is ended, and it becomes a dead letter."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest

from nightmail.engine.attempt import Batched
from nightmail.engine.current import current_slot
from nightmail.engine.leases import Keeper, Leases
from nightmail.engine.quarantine import Quarantine
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.threads import current_call
from nightmail.engine.worker import Worker
from nightmail.errors import HandlerTimeout
from nightmail.message import Delivery
from nightmail.observe import LoggingObserver, Observer, Observers
from nightmail.outcome import Dead, Done, Reason, Release, WriteResult
from nightmail.records import DeadFilter
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore, lost_request
from tests.unit.support import QUEUE, Handler, Seen, at_work, delivery, publish

SOON = timedelta(seconds=0.3)
BRIEF = WorkerSettings(max_workers=1, lease=SOON)
STOPPED = Dead(Reason.STOPPED, "stopped by ann")


class Stops(Observer):
    """Remembers who stopped what."""

    def __init__(self) -> None:
        self.by: list[tuple[int, str]] = []

    def stopped(self, delivery: Delivery, by: str) -> None:
        self.by.append((delivery.id, by))


async def test_a_running_handler_is_cancelled_and_its_message_is_dead(store: FaultyStore, seen: Seen) -> None:
    handler, stops = Handler(held=True), Stops()
    (id_,) = await publish(store)

    async with at_work(
        Worker(store, handler, queues=[QUEUE], settings=BRIEF, observer=Observers(seen, stops))
    ):
        await handler.until_running(1)
        assert await store.request_stop(id_, by="ann")
        await seen.until_settled(1)

    assert handler.cancelled == 1
    assert seen.of(id_) == [STOPPED]
    assert stops.by == [(id_, "ann")]
    (letter,) = await store.dead(DeadFilter())
    assert (letter.reason, letter.error, letter.attempts) == ("stopped", "stopped by ann", 1)


async def test_the_worker_goes_on_with_the_next_one(store: FaultyStore, seen: Seen) -> None:
    release = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.body == b"0":
            await release.wait()

    first, second = await publish(store, 2)

    async with at_work(Worker(store, handle, queues=[QUEUE], settings=BRIEF, observer=seen)):
        await seen.until(lambda: first in seen.runs)
        await store.request_stop(first, by="ann")
        await seen.until_settled(2)

    assert seen.of(first) == [STOPPED]
    assert seen.of(second) == [Done()]


async def test_what_waits_in_memory_is_buried_without_running(
    store: FaultyStore, seen: Seen, far_ahead: None
) -> None:
    handler = Handler(held=True)
    first, second = await publish(store, 2)

    async with at_work(Worker(store, handler, queues=[QUEUE], settings=BRIEF, observer=seen)):
        await handler.until_running(1)
        await seen.until(lambda: sum(map(len, seen.claims)) == 2)
        assert await store.request_stop(second, by="ann")
        await seen.until_settled(1)
        handler.let_go()
        await seen.until_settled(2)

    assert seen.runs == [first]
    assert seen.of(second) == [Dead(Reason.STOPPED, "stopped by ann", ran=False)]


async def test_a_quarantined_message_that_waits_for_its_turn_is_buried_without_running(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    handler, quarantine = Handler(held=True), Quarantine()
    (id_,) = await publish(store)
    for _ in range(2):
        await store.claim([QUEUE], limit=1, lease=SOON, token=delivery().token)
        clock.advance(2 * SOON)
    await publish(store, queue="neighbours")

    async with (
        at_work(Worker(store, handler, queues=["neighbours"], settings=BRIEF, quarantine=quarantine)),
        at_work(
            Worker(store, Handler(), queues=[QUEUE], settings=BRIEF, observer=seen, quarantine=quarantine)
        ),
    ):
        await handler.until_running(1)
        await seen.until(lambda: sum(map(len, seen.claims)) == 1)
        assert await store.request_stop(id_, by="ann")
        await seen.until_settled(1)
        handler.let_go()

    assert seen.runs == []
    assert seen.of(id_) == [Dead(Reason.STOPPED, "stopped by ann", ran=False)]


async def test_of_a_batch_the_others_are_handed_back(store: FaultyStore, seen: Seen) -> None:
    begun = asyncio.Event()

    async def handle(batch: Sequence[Delivery]) -> None:
        if len(batch) == 3:
            begun.set()
            await asyncio.sleep(3600)

    first, second, third = await publish(store, 3)
    worker = Worker(store, Batched(handle, 3), queues=[QUEUE], settings=BRIEF, observer=seen)

    async with at_work(worker):
        await begun.wait()
        await store.request_stop(second, by="ann")
        await seen.until_settled(5)

    assert seen.of(second) == [STOPPED]
    assert seen.of(first) == seen.of(third) == [Release(), Done()]


async def test_a_handler_that_goes_on_all_the_same_has_done_its_work(store: FaultyStore, seen: Seen) -> None:
    async def handle(_delivery: Delivery) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return

    (id_,) = await publish(store)

    async with at_work(Worker(store, handle, queues=[QUEUE], settings=BRIEF, observer=seen)):
        await seen.until(lambda: bool(seen.runs))
        await store.request_stop(id_, by="ann")
        await seen.until_settled(1)

    assert seen.of(id_) == [Done()]


async def test_what_it_raises_instead_of_its_cancellation_is_no_failure(
    store: FaultyStore, seen: Seen
) -> None:
    async def handle(_delivery: Delivery) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise LookupError from None

    (id_,) = await publish(store)

    async with at_work(Worker(store, handle, queues=[QUEUE], settings=BRIEF, observer=seen)):
        await seen.until(lambda: bool(seen.runs))
        await store.request_stop(id_, by="ann")
        await seen.until_settled(1)

    assert seen.of(id_) == [STOPPED]
    assert seen.failures == []


async def test_a_thread_is_told_to_end(store: FaultyStore, seen: Seen) -> None:
    running = threading.Event()

    def wait_in_steps() -> None:
        running.set()
        call = current_call()
        assert call is not None
        while not call.stopping:
            threading.Event().wait(0.01)
        raise HandlerTimeout

    async def handle(_delivery: Delivery) -> None:
        slot = current_slot()
        assert slot is not None
        assert slot.threads is not None
        await slot.threads.run(slot, wait_in_steps)

    (id_,) = await publish(store)

    async with at_work(Worker(store, handle, queues=[QUEUE], settings=BRIEF, observer=seen)):
        await asyncio.to_thread(running.wait, 30)
        await store.request_stop(id_, by="ann")
        await seen.until_settled(1)

    assert seen.of(id_) == [STOPPED]


async def test_a_name_that_cannot_be_read_does_not_keep_it_from_stopping(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    (id_,) = await publish(store)

    async with at_work(Worker(store, handler, queues=[QUEUE], settings=BRIEF, observer=seen)):
        await handler.until_running(1)
        store.upset("facts", lost_request, times=None)
        await store.request_stop(id_, by="ann")
        await seen.until_settled(1)

    assert seen.of(id_) == [Dead(Reason.STOPPED, "stopped by an operator")]


@pytest.mark.parametrize("waits", [False, True], ids=["running", "waiting"])
async def test_it_is_one_line_in_the_log(
    store: FaultyStore, seen: Seen, far_ahead: None, caplog: pytest.LogCaptureFixture, waits: bool
) -> None:
    handler = Handler(held=True)
    first, second = await publish(store, 2)
    stopped = second if waits else first

    with caplog.at_level(logging.INFO, "nightmail"):
        async with at_work(
            Worker(
                store, handler, queues=[QUEUE], settings=BRIEF, observer=Observers(seen, LoggingObserver())
            )
        ):
            await handler.until_running(1)
            await seen.until(lambda: sum(map(len, seen.claims)) == 2)
            await store.request_stop(stopped, by="ann")
            await seen.until(lambda: bool(seen.of(stopped)))
            handler.let_go()
            await seen.until_settled(2)

    when = "before it ran" if waits else "during attempt 1"
    assert caplog.messages == [f"message {stopped} of {QUEUE}: stopped by ann {when}; a dead letter now"]


async def test_the_keeper_takes_it_for_a_renewal_and_passes_it_on() -> None:
    leases, told = Leases(), list[Delivery]()
    leased = delivery(id=1)
    leases.add([leased], until=10.0)

    async def extend(batch: Sequence[Delivery], _lease: timedelta) -> list[WriteResult]:
        return [WriteResult.STOP] * len(batch)

    keeper = Keeper(
        leases,
        timedelta(seconds=10),
        lost=lambda _: pytest.fail("nothing is lost"),
        failed=lambda *_: pytest.fail("nothing has failed"),
        stop=told.append,
        now=lambda: 5.0,
    )
    assert await keeper.renew(extend)

    assert told == [leased]
    assert leases.surely_holds(leased, 14.9)
