"""A paused queue starts nothing more within a second, whatever was fetched ahead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest

from nightmail.controls import Pause
from nightmail.engine.attempt import Batched
from nightmail.engine.in_flight import InFlight
from nightmail.engine.leases import Leases
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.slot import HandlerSlot
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import Done, Release
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.unit.faulty import FaultyStore, Gate, lost_request
from tests.unit.moving_time import LoopClock, loop_clock
from tests.unit.support import QUEUE, Handler, Seen, at_work, delivery, publish, soon

__all__ = ["loop_clock"]

ONE = WorkerSettings(max_workers=1)
WORKERS = 8


class Starts:
    """A handler that takes a while, and remembers when it was started."""

    def __init__(self, seconds: float) -> None:
        self.at: list[float] = []
        self.queues: list[str] = []
        self._seconds = seconds

    async def __call__(self, delivery: Delivery) -> None:
        await self.many([delivery])

    async def many(self, batch: Sequence[Delivery]) -> None:
        self.at.append(time.monotonic())
        self.queues += [each.queue for each in batch]
        await asyncio.sleep(self._seconds)

    def after(self, moment: float) -> int:
        """How many were started later than that."""
        return sum(at > moment for at in self.at)


@pytest.mark.parametrize("batch", [None, 5], ids=["one", "batch"])
@pytest.mark.parametrize("seconds", [0.01, 0.05, 0.4, 3.0])
async def test_eight_workers_under_load_start_nothing_a_second_after_a_pause(
    data: MemoryData, loop_clock: LoopClock, seconds: float, batch: int | None, far_ahead: None
) -> None:
    starts = Starts(seconds)
    stores = [MemoryStore(data, clock=loop_clock) for _ in range(WORKERS)]
    handler = starts if batch is None else Batched(starts.many, batch)
    workers = [Worker(store, handler, queues=[QUEUE], settings=ONE) for store in stores]
    published = await publish(stores[0], 4000)

    async with at_work(*workers):
        await asyncio.sleep(0.3)
        await stores[0].pause(QUEUE, by="ann")
        paused = time.monotonic()
        await asyncio.sleep(10.0)

        assert starts.at
        assert starts.after(paused + 1.0) == 0
        left = await stores[0].find(published)
        assert 0 < len(left) < len(published)
        # Nothing that was handed back has been counted.
        assert all(message.attempts == 0 and message.deliveries == 0 for message in left)
        assert await stores[0].leases() == []

        await stores[0].resume(QUEUE)
        await asyncio.sleep(1.0)
        assert starts.after(paused + 1.0) > 0


async def test_only_the_paused_queue_and_the_paused_key_are_held_back(
    store: FaultyStore, seen: Seen, far_ahead: None
) -> None:
    handler = Handler(held=True)
    await publish(store)
    held = await publish(store, 2, queue="paused")
    keyed = await publish(store, 1, ordering_key="acct-7")
    free = await publish(store, 1, ordering_key="acct-8")
    worker = Worker(store, handler, queues=[QUEUE, "paused"], settings=ONE, observer=seen)

    async with at_work(worker):
        await handler.until_running(1)
        await seen.until(lambda: sum(map(len, seen.claims)) == 5)
        await store.pause("paused", by="ann")
        await store.pause(QUEUE, ordering_key="acct-7", by="ann")
        await asyncio.sleep(0.55)
        handler.let_go()
        await seen.until_settled(5)

    assert seen.of(held[0]) == seen.of(held[1]) == seen.of(keyed[0]) == [Release()]
    assert seen.of(free[0]) == [Done()]
    assert store.calls["pauses"] == 1


async def test_messages_that_start_soon_after_their_claim_need_no_look(
    data: MemoryData, loop_clock: LoopClock, seen: Seen
) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    await publish(store, 500)

    async with at_work(Worker(store, Starts(0.1), queues=[QUEUE], observer=seen)):
        await seen.until_settled(500)

    assert store.calls["pauses"] == 0


async def test_all_that_wait_share_one_look(
    data: MemoryData, loop_clock: LoopClock, seen: Seen, far_ahead: None
) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    await publish(store, 100)
    settings = WorkerSettings(max_workers=10)

    async with at_work(Worker(store, Starts(0.3), queues=[QUEUE], settings=settings, observer=seen)):
        await seen.until_settled(100)

    # Ten rounds of 0.3 s: a look at most every half second.
    assert 1 <= store.calls["pauses"] <= 6


async def test_a_store_that_cannot_say_keeps_nothing_from_running(
    data: MemoryData, loop_clock: LoopClock, seen: Seen, far_ahead: None
) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    store.upset("pauses", lost_request, times=None)
    await publish(store, 10)

    async with at_work(Worker(store, Starts(1.0), queues=[QUEUE], settings=ONE, observer=seen)):
        await seen.until(lambda: sum(isinstance(outcome, Done) for _, outcome in seen.outcomes) == 10)


async def test_a_worker_that_stops_while_it_looks_hands_everything_back(
    store: FaultyStore, seen: Seen, far_ahead: None
) -> None:
    handler = Handler(held=True)
    first, *others = await publish(store, 4)
    looking = store.upset("pauses", Gate())
    worker = Worker(store, handler, queues=[QUEUE], settings=ONE, observer=seen)

    async with at_work(worker):
        await handler.until_running(1)
        await asyncio.sleep(0.55)
        handler.let_go()
        await soon(looking.reached.wait())
        await soon(worker.stop())
        looking.open()

    assert seen.of(first) == [Done()]
    assert [seen.of(each) for each in others] == [[Release()]] * 3


async def test_dead_letters_are_not_looked_at(store: FaultyStore) -> None:
    in_flight = InFlight()
    in_flight.take([delivery(id=1)], checked=-1e9)

    assert in_flight.stale_from > time.monotonic() + 1e9


def test_each_claim_goes_stale_by_itself() -> None:
    in_flight = InFlight(0.5)
    first, second, third, fourth = (delivery(id=number) for number in range(1, 5))
    in_flight.take([first, second], checked=10.0)
    in_flight.take([third, fourth], checked=20.0)
    slot = _slot()

    seen = []
    for _ in range(4):
        seen.append(in_flight.stale_from)
        in_flight.start(slot, 0.0)
    assert seen == [10.5, 10.5, 20.5, 20.5]
    assert in_flight.stale_from == float("inf")


def test_what_is_left_after_some_are_gone_counts_as_the_oldest() -> None:
    in_flight = InFlight(0.5)
    first, second, third = (delivery(id=number) for number in range(1, 4))
    in_flight.take([first], checked=10.0)
    in_flight.take([second, third], checked=20.0)

    assert in_flight.take_out(lambda each: each.id == 1) == [first]
    assert in_flight.stale_from == 10.5
    assert in_flight.forget(third)
    assert in_flight.stale_from == 10.5
    in_flight.were_checked(30.0)
    assert in_flight.stale_from == 30.0
    assert in_flight.give_back() == [second]
    assert in_flight.is_empty
    assert in_flight.stale_from == float("inf")


def _slot() -> HandlerSlot:
    class NoTask:
        """Never cancelled here."""

    return HandlerSlot(NoTask(), Leases())  # type: ignore[arg-type]


async def test_a_pause_of_a_person_does_not_end_that_of_a_breaker(store: FaultyStore) -> None:
    await store.pause(QUEUE, until=timedelta(seconds=30), by="host/1", automatic=True)
    await store.pause(QUEUE, by="ann")
    await store.resume(QUEUE)

    left: list[Pause] = await store.pauses(QUEUE)
    assert [pause.by for pause in left] == ["host/1"]
