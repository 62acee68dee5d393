"""An observer that raises, against its promise, harms nothing: every message ends as without it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nightmail.engine import current
from nightmail.engine.attempt import Batched
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import Done, Outcome, Release, Retry
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore, lost_reply
from tests.unit.support import QUEUE, Seen, a_few_steps, at_work, publish, publish_timer, soon, take

EVENTS = (
    "claimed",
    "started",
    "ended",
    "failed",
    "policy_failed",
    "settled",
    "acked_in_transaction",
    "superseded",
    "lease_lost",
    "uncertain",
    "woken",
    "store_unavailable",
    "store_recovered",
    "drained",
)
"""What a worker tells of."""
TWO = WorkerSettings(max_workers=2)


class Raising(Seen):
    """Hears everything, and raises at what it is told to raise at."""

    def __init__(self) -> None:
        super().__init__()
        self.raised: set[str] = set()


def raising_at(*events: str) -> Raising:
    """An observer that raises at these."""

    def broken(event: str) -> Any:
        def hear(self: Raising, *what: Any) -> None:
            getattr(Seen, event)(self, *what)
            self.raised.add(event)
            raise RuntimeError("the metrics are down")

        return hear

    made: Raising = type("Raising", (Raising,), {event: broken(event) for event in events})()
    return made


class EventfulDay:
    """A handler to which everything happens that a worker tells of."""

    def __init__(self, data: MemoryData, clock: ManualClock) -> None:
        self._data = data
        self._another = MemoryStore(data, clock=clock)
        self._lost: set[int] = set()
        self.ended: set[bytes] = set()
        self._changed = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> None:
        match delivery.body:
            case b"fails once" if delivery.attempts == 0:
                raise ValueError
            case b"fails its policy":
                self._end(delivery)
                raise KeyError
            case b"lost" if delivery.id not in self._lost:
                self._lost.add(delivery.id)
                await self._another.settle([Settlement(delivery, Release())])
                raise LeaseLost([delivery.id])
            case b"acked in a transaction":
                async with self._data.transaction() as transaction:
                    await self._another.ack([delivery], transaction=transaction)
                    current.acked_in_transaction([delivery])
        self._end(delivery)

    def _end(self, delivery: Delivery) -> None:
        self.ended.add(delivery.body)
        self._changed.set()

    @staticmethod
    def policy(delivery: Delivery, error: Exception | None) -> Outcome:
        """A retry policy with a hole."""
        if isinstance(error, KeyError):
            raise error
        return Retry()

    async def until_ended(self, *bodies: bytes) -> None:
        """Wait until these were handled for the last time."""
        while not self.ended.issuperset(bodies):
            self._changed.clear()
            await soon(self._changed.wait())


@pytest.mark.parametrize("events", [*((event,) for event in EVENTS), EVENTS], ids=[*EVENTS, "everything"])
async def test_whatever_an_observer_raises_at_every_message_ends_as_it_should(
    store: FaultyStore,
    data: MemoryData,
    clock: ManualClock,
    events: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    day, observer = EventfulDay(data, clock), raising_at(*events)
    await publish_timer(store, "t", body=b"replaced")
    (running,) = await take(store)
    await publish_timer(store, "t", body=b"newer", on_conflict="replace")
    await store.settle([Settlement(running, Retry())])
    todays = [b"plain", b"fails once", b"fails its policy", b"lost", b"acked in a transaction"]
    for body in todays:
        await publish(store, body=body)
    store.upset("settle", lost_reply)

    settings = WorkerSettings(max_workers=2, retry=day.policy)
    worker = Worker(store, day, queues=[QUEUE], settings=settings, observer=observer)
    async with at_work(worker):
        await day.until_ended(*todays, b"newer")
        await a_few_steps()
        await publish(store, body=b"wakes it")
        await day.until_ended(b"wakes it")

    assert observer.raised == set(events)
    stats = (await store.stats())[QUEUE]
    assert (stats.ready, stats.scheduled, stats.running, stats.dead) == (0, 0, 0, 1)
    assert [letter.reason for letter in await store.dead(DeadFilter())] == ["policy_error"]
    assert b"replaced" not in day.ended


async def test_an_observer_that_raises_at_a_lost_lease_does_not_keep_the_rest_of_the_batch(
    store: FaultyStore,
) -> None:
    observer, runs = raising_at("lease_lost"), []

    async def handler(batch: Any) -> None:
        runs.append(len(batch))
        if len(runs) == 1:
            raise LeaseLost([batch[0].id])

    lost, *innocent = await publish(store, 3)
    worker = Worker(store, Batched(handler), queues=[QUEUE], settings=TWO, observer=observer)
    async with at_work(worker):
        await observer.until_settled(4)

    assert observer.lost == [lost]
    assert [observer.of(each) for each in innocent] == [[Release(), Done()], [Release(), Done()]]


async def test_a_worker_whose_observer_raises_at_everything_works_until_nothing_is_left(
    store: FaultyStore,
) -> None:
    observer = raising_at(*EVENTS)
    published = await publish(store, 30)

    async def handler(delivery: Delivery) -> None: ...

    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=observer)
    await soon(worker.run_until_idle())

    assert sorted(observer.outcomes) == [(each, Done()) for each in published]
    assert await store.stats() == {}
