"""A worker fetches ahead by time: what it has in hand it also starts soon, and others get their share."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from nightmail.engine import claiming, room
from nightmail.engine import worker as worker_module
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import Done, Release
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore, Gate
from tests.unit.support import QUEUE, Handler, Seen, a_few_steps, at_work, publish, take

FIVE = WorkerSettings(max_workers=5)


async def test_a_worker_that_knows_nothing_yet_fetches_what_it_can_start(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], settings=FIVE, observer=seen)
    await publish(store, 100)
    async with at_work(worker):
        await handler.until_running(5)
        await a_few_steps()
        assert store.sizes["claim"] == [5]
        assert worker.in_hand == 5
        handler.let_go()


async def test_slow_handlers_that_end_together_do_not_look_fast(store: FaultyStore, seen: Seen) -> None:
    in_hand: list[int] = []

    async def slow(delivery: Delivery) -> None:
        in_hand.append(worker.in_hand)
        await asyncio.sleep(0.1)

    worker = Worker(store, slow, queues=[QUEUE], settings=FIVE, observer=seen)
    await publish(store, 300)
    async with at_work(worker):
        await seen.until(lambda: len(seen.runs) >= 30)

    # Five run, five are being settled, and in 0.2 s five workers start ten runs of 0.1 s.
    assert max(in_hand) <= 20


async def test_another_process_gets_its_share_of_slow_work(
    data: MemoryData, store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    runs = Counter[str]()

    async def slow(delivery: Delivery) -> None:
        runs["first"] += 1
        await asyncio.sleep(0.05)

    async def slow_elsewhere(delivery: Delivery) -> None:
        runs["second"] += 1
        await asyncio.sleep(0.05)

    await publish(store, 80)
    other_store = MemoryStore(data, clock=clock)
    first = Worker(store, slow, queues=[QUEUE], settings=FIVE, observer=seen)
    second = Worker(other_store, slow_elsewhere, queues=[QUEUE], settings=FIVE, observer=seen)
    async with at_work(first):
        await seen.until(lambda: runs["first"] >= 15)
        async with at_work(second):
            await seen.until_settled(80)

    assert runs["second"] >= 20


async def test_quick_handlers_are_fetched_for_far_ahead(store: FaultyStore, seen: Seen) -> None:
    async def quick(delivery: Delivery) -> None:
        await asyncio.sleep(0)

    await publish(store, 4000)
    async with at_work(Worker(store, quick, queues=[QUEUE], settings=FIVE, observer=seen)):
        await seen.until_settled(4000)

    assert store.sizes["claim"][0] == 5
    assert max(store.sizes["claim"]) >= 200
    assert max(store.sizes["claim"]) <= 2005


async def test_what_was_fetched_ahead_is_handed_back_when_handlers_turn_slow(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "REVIEW_SECONDS", 0.05)
    monkeypatch.setattr(claiming, "REVIEW_SECONDS", 0.05)
    stuck = asyncio.Event()
    hold = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if int(delivery.body) >= 100:
            stuck.set()
            await hold.wait()

    worker = Worker(store, handle, queues=[QUEUE], settings=FIVE, observer=seen)
    await publish(store, 400)
    async with at_work(worker):
        await stuck.wait()
        await seen.until(lambda: any(outcome == Release() for _, outcome in seen.outcomes))
        await seen.until(lambda: worker.in_hand <= 5 + 20)

        # Another process finds them at once, and sees that nothing has happened to them.
        found = await take(store, 300)
        assert len(found) >= 270
        assert {(delivery.attempts, delivery.deliveries) for delivery in found} == {(0, 1)}
        hold.set()


async def test_what_a_free_handler_is_about_to_start_is_not_handed_back(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a process that stands still between a claim and its start: it first looks whether they were paused.
    monkeypatch.setattr(worker_module, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(room, "REVIEW_SECONDS", 0.0)
    monkeypatch.setattr(claiming, "REVIEW_SECONDS", 0.0)
    look = store.upset("pauses", Gate())
    await publish(store, 5)

    async with at_work(Worker(store, Handler(), queues=[QUEUE], settings=FIVE, observer=seen)):
        await look.reached.wait()
        await a_few_steps()
        look.open()
        await seen.until_settled(5)

    assert [outcome for _, outcome in seen.outcomes] == [Done()] * 5
