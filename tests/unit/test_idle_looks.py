"""Idle workers share one look, and are never later for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest

from nightmail.engine.idle_looks import IdleLooks
from nightmail.engine.next_look import Alarm
from nightmail.engine.worker import Worker
from nightmail.errors import StoreUnavailable
from nightmail.outcome import Done
from nightmail.store import Source
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import Call, FaultyStore, lost_reply
from tests.unit.support import QUEUE, Handler, Seen, at_work, publish

SECOND = timedelta(seconds=1)


class Ahead(MemoryStore):
    """Tells what it is told to."""

    def __init__(self, **expected: timedelta) -> None:
        super().__init__()
        self.expected = expected
        self.asked: list[Sequence[str]] = []
        self.failing = False
        self.interval = super().look_interval

    @property
    def look_interval(self) -> timedelta:
        return self.interval

    async def look_ahead(self, queues: Sequence[str]) -> dict[str, timedelta]:
        self.asked.append(queues)
        await asyncio.sleep(0)
        if self.failing:
            raise StoreUnavailable("gone")
        return {queue: next_in for queue, next_in in self.expected.items() if queue in queues}


@pytest.fixture
def looks() -> IdleLooks:
    return IdleLooks()


def idle(looks: IdleLooks, store: Source, *queues: str, seconds: float = 0.0) -> Alarm:
    """The alarm of an idle worker, with so many seconds left."""
    alarm = Alarm()
    alarm.set(time.monotonic() + seconds, routine=True)
    looks.join(alarm, store, queues)
    return alarm


def left(alarm: Alarm) -> float:
    return alarm.seconds_from(time.monotonic())


async def test_one_look_puts_off_those_of_all_idle_workers(looks: IdleLooks) -> None:
    store = Ahead(c=60 * SECOND)
    due, other, later = (
        idle(looks, store, "b", "a"),
        idle(looks, store, "a"),
        idle(looks, store, "c", seconds=3),
    )

    assert all(await asyncio.gather(looks.puts_off(due), looks.puts_off(other)))

    assert store.asked == [["a", "b", "c"]]
    assert min(left(alarm) for alarm in (due, other, later)) > 3
    assert due.is_routine
    assert later.is_routine


async def test_a_worker_for_whom_there_is_something_looks_by_itself(looks: IdleLooks) -> None:
    store = Ahead(a=timedelta(0), b=timedelta(0), c=4 * SECOND)
    due, soon = idle(looks, store, "a"), idle(looks, store, "b", seconds=2)
    timer = idle(looks, store, "c", seconds=1)

    assert not await looks.puts_off(due)

    assert left(due) == 0
    # Not earlier than without this look, and never later. What has a time of its own is not looked for again before.
    assert 0 < left(soon) <= 2
    assert not soon.is_routine
    assert 3 < left(timer) <= 4
    assert not timer.is_routine


async def test_a_look_that_takes_longer_than_the_interval_makes_only_those_claim_for_whom_there_is_something(
    looks: IdleLooks,
) -> None:
    store = Ahead(b=timedelta(0))
    store.interval = timedelta(microseconds=1)
    idlers = [idle(looks, store, queue) for queue in ("a", "b", "c")]

    # A server as slow as this must not get a claim from each of them as well.
    assert await asyncio.gather(*map(looks.puts_off, idlers)) == [True, False, True]

    assert len(store.asked) == 1


async def test_only_a_look_that_expects_nothing_is_put_off(looks: IdleLooks) -> None:
    store = Ahead()
    idle(looks, store, "other")
    expects, early = Alarm(), idle(looks, store, "early", seconds=2)
    looks.join(expects, store, ("a",))

    assert not await looks.puts_off(expects)
    # Its time has not come: it was woken.
    assert not await looks.puts_off(early)
    assert store.asked == []


async def test_a_worker_alone_claims_and_so_does_one_whose_store_cannot_look_ahead(looks: IdleLooks) -> None:
    store, blind = Ahead(), MemoryStore()
    alone, *others = [idle(looks, store, "a"), idle(looks, blind, "a"), idle(looks, blind, "b")]

    assert [await looks.puts_off(alarm) for alarm in (alone, *others)] == [False, False, False]

    left_behind = idle(looks, store, "b")
    looks.leave(left_behind)
    assert not await looks.puts_off(alone)
    assert not await looks.puts_off(left_behind)
    assert store.asked == []


async def test_a_look_that_fails_fails_all_who_wait_for_it_and_puts_off_none(looks: IdleLooks) -> None:
    store = Ahead()
    store.failing = True
    one, two = idle(looks, store, "a"), idle(looks, store, "b")

    failed = await asyncio.gather(looks.puts_off(one), looks.puts_off(two), return_exceptions=True)

    assert [type(error) for error in failed] == [StoreUnavailable] * 2
    assert left(one) == left(two) == 0
    store.failing = False
    assert await looks.puts_off(one)
    assert len(store.asked) == 2


class NothingAhead(FaultyStore):
    """Tells that nothing is due anywhere."""

    async def look_ahead(self, queues: Sequence[str]) -> dict[str, timedelta]:
        return {}


async def test_what_a_claim_took_whose_reply_was_lost_is_handed_back_before_any_look_is_put_off(
    monkeypatch: pytest.MonkeyPatch, looks: IdleLooks, data: MemoryData, clock: ManualClock, seen: Seen
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 0.001)
    store = NothingAhead(MemoryStore(data, clock=clock))
    store.interval = timedelta(milliseconds=5)
    [published] = await publish(store, due=timedelta(hours=1))

    async def lost_while_another_becomes_idle(claim: Call) -> None:
        idle(looks, store, "other")
        await lost_reply(claim)

    async with at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen, idle_looks=looks)):
        await store.until_called("claim", 2)
        store.upset("claim", lost_while_another_becomes_idle)
        clock.advance(timedelta(hours=1))
        await seen.until_settled(1)

    assert seen.outcomes == [(published, Done())]
    assert store.calls["recall"] == 1
