"""When a worker looks: when something is due, when it is woken, when the time has come; and otherwise not.

On time that passes when it is waited for: a slow machine must not be taken for an early or a late look.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from nightmail.bell import Bell
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import Done
from nightmail.store import Claimed
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.unit.faulty import Call, FaultyStore, lost_request
from tests.unit.moving_time import LoopClock, loop_clock
from tests.unit.support import QUEUE, Handler, Seen, a_few_steps, at_work, publish

__all__ = ["loop_clock"]

MILLISECONDS_100 = timedelta(milliseconds=100)


class Looks:
    """A claim that finds nothing and says when it is worth looking again; notes when it was asked."""

    def __init__(self, next_in: timedelta | None) -> None:
        self.next_in = next_in
        self.at: list[float] = []

    async def __call__(self, call: Call) -> Claimed:
        self.at.append(asyncio.get_running_loop().time())
        return Claimed((), self.next_in)

    @property
    def pauses(self) -> list[float]:
        """The time between two looks."""
        return [later - earlier for earlier, later in zip(self.at, self.at[1:], strict=False)]


@pytest.fixture
def store(data: MemoryData, loop_clock: LoopClock) -> FaultyStore:
    """A store over this data, on the time of the event loop."""
    return FaultyStore(MemoryStore(data, clock=loop_clock))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """For how long a worker was willing to wait for its bell, each time."""
    willing: list[float | None] = []
    wait = Bell.wait

    async def noting(bell: Bell, timeout: float | None) -> bool:
        willing.append(timeout)
        return await wait(bell, timeout)

    monkeypatch.setattr(Bell, "wait", noting)
    return willing


@pytest.mark.parametrize(
    ("next_in", "interval"),
    [
        (MILLISECONDS_100, timedelta(seconds=5)),
        (None, MILLISECONDS_100),
        (timedelta(hours=1), MILLISECONDS_100),
    ],
    ids=["until the next is due", "nothing known: the look interval", "due later than the look interval"],
)
async def test_an_idle_worker_sleeps_exactly_as_long_as_it_may(
    store: FaultyStore, next_in: timedelta | None, interval: timedelta, waits: list[float | None]
) -> None:
    looks = store.upset("claim", Looks(next_in), times=None)
    store.interval = interval
    async with at_work(Worker(store, Handler(), queues=[QUEUE])):
        await store.until_called("claim", times=4)

    assert len(looks.pauses) == 3
    # Never sooner: that would be a query for nothing. Never longer, however slow the machine is.
    assert min(looks.pauses) >= 0.099
    assert len(waits) >= 3
    assert all(wait is not None and wait <= 0.1 for wait in waits)


async def test_an_idle_worker_asks_nothing_of_the_store(store: FaultyStore) -> None:
    async with at_work(Worker(store, Handler(), queues=[QUEUE])):
        await store.until_called("claim")
        await asyncio.sleep(0.2)

        assert store.calls == {"claim": 1, "report": 1}


async def test_what_is_overdue_is_looked_for_at_once(store: FaultyStore, waits: list[float | None]) -> None:
    store.upset("claim", Looks(timedelta(0)), times=5)
    async with at_work(Worker(store, Handler(), queues=[QUEUE])):
        await store.until_called("claim", times=6)
        # Only the sixth found that there is nothing to do.
        assert len(waits) <= 1


async def test_a_delayed_message_is_delivered_when_it_is_due(store: FaultyStore, seen: Seen) -> None:
    loop = asyncio.get_running_loop()
    handler = Handler()
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await store.until_called("claim")
        began = loop.time()
        await publish(store, due=MILLISECONDS_100)
        await seen.until_settled(1)
        took = loop.time() - began

    assert 0.1 <= took < 0.11
    [delivered] = handler.deliveries
    assert delivered.claimed_at >= delivered.due_at
    # At the start, when rung for the publish, and when it was due.
    assert store.calls["claim"] == 3


async def test_a_message_published_between_the_claim_and_the_wait_is_not_slept_through(
    store: FaultyStore, seen: Seen
) -> None:
    async def publish_before_the_reply_arrives(call: Call) -> Claimed:
        nothing: Claimed = await call()
        await publish(store)
        return nothing

    store.upset("claim", publish_before_the_reply_arrives)
    async with at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen)):
        async with asyncio.timeout(1):
            await seen.until_settled(1)

    assert seen.outcomes == [(1, Done())]


async def test_a_message_published_while_there_is_no_room_is_taken_when_there_is(
    store: FaultyStore, seen: Seen
) -> None:
    hold = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        await hold.wait()

    settings = WorkerSettings(max_workers=1)
    await publish(store)
    async with at_work(Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)):
        await seen.until(lambda: len(seen.runs) == 1)
        await publish(store)
        await a_few_steps()
        assert store.calls["claim"] == 1
        hold.set()
        async with asyncio.timeout(1):
            await seen.until_settled(2)


async def test_a_message_published_during_an_outage_is_delivered_when_the_store_is_back(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    store.upset("claim", lost_request, times=None)
    async with at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen)):
        await seen.until(lambda: len(seen.outages) >= 2)
        await publish(store)
        store.mend()
        async with asyncio.timeout(1):
            await seen.until_settled(1)


async def test_a_look_that_a_wake_up_asked_for_and_that_failed_is_made_up_for_at_once(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    async with at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen)):
        await store.until_called("claim")
        await a_few_steps()
        store.upset("claim", lost_request)
        await publish(store)

        # The wake-up is used up, and the next look by the clock is five seconds away.
        async with asyncio.timeout(1):
            await seen.until_settled(1)

    assert len(seen.outages) == 1


async def test_many_wake_ups_at_once_are_one_look(store: FaultyStore, seen: Seen) -> None:
    async with at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen)):
        await store.until_called("claim")
        for _ in range(5):
            await publish(store)
        await seen.until_settled(5)

    assert seen.wakes == 1
    # At the start and when woken; the five filled no claim, so there is no other look.
    assert store.calls["claim"] == 2


async def test_other_queues_do_not_wake_a_worker(store: FaultyStore, seen: Seen) -> None:
    async with at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen)):
        await store.until_called("claim")
        await publish(store, queue="another")
        await asyncio.sleep(0.05)

        assert store.calls["claim"] == 1
        assert seen.wakes == 0


async def test_a_full_claim_is_followed_by_another_as_soon_as_there_is_room(
    store: FaultyStore, seen: Seen
) -> None:
    settings = WorkerSettings(max_workers=2)
    await publish(store, 5)
    async with at_work(Worker(store, Handler(), queues=[QUEUE], settings=settings, observer=seen)):
        async with asyncio.timeout(1):
            await seen.until_settled(5)

    assert store.sizes["claim"][0] == 2
    assert seen.wakes == 0
