"""Claims and settlements go together: what a message costs the store does not depend on luck or on settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from nightmail.engine import claiming, room, settling
from nightmail.engine.attempt import Batched
from nightmail.engine.prefetch import SHORT_CLAIM
from nightmail.engine.presence import Presence
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.settling import GATHER_SECONDS, SETTLE_BATCH
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import Done
from tests.unit.faulty import FaultyStore, Gate
from tests.unit.support import QUEUE, Handler, Seen, a_few_steps, at_work, publish, soon


async def quick(delivery: Delivery) -> None:
    await asyncio.sleep(0)


async def quick_batch(deliveries: Sequence[Delivery]) -> list[None]:
    await asyncio.sleep(0)
    return [None] * len(deliveries)


async def test_a_thousand_quick_messages_cost_at_most_fifty_calls(store: FaultyStore, seen: Seen) -> None:
    async with at_work(Worker(store, quick, queues=[QUEUE], observer=seen)):
        await publish(store, 200)
        await seen.until_settled(200)
        store.calls.clear()

        await publish(store, 1000)
        await seen.until_settled(1200)
        calls = store.calls["claim"] + store.calls["settle"]

    assert calls <= 50


async def test_working_until_idle_batches_too(store: FaultyStore, seen: Seen) -> None:
    worker = Worker(store, quick, queues=[QUEUE], observer=seen)
    await publish(store, 1200)

    await soon(worker.run_until_idle())

    assert store.calls["claim"] + store.calls["settle"] <= 60


async def test_messages_that_end_together_are_settled_together(store: FaultyStore, seen: Seen) -> None:
    handler = Handler(held=True)
    await publish(store, 10)
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await handler.until_running(10)
        handler.let_go()
        await seen.until_settled(10)

    assert store.sizes["settle"] == [10]


async def test_a_lone_message_is_settled_at_once(store: FaultyStore, seen: Seen) -> None:
    loop = asyncio.get_running_loop()
    ended = 0.0

    async def handle(delivery: Delivery) -> None:
        nonlocal ended
        ended = loop.time()

    # The quickest of a few: the machine may pause any one of them for longer than the gathering would last.
    waits = []
    async with at_work(Worker(store, handle, queues=[QUEUE], observer=seen)):
        for number in range(1, 11):
            await publish(store)
            await seen.until_settled(number)
            waits.append(loop.time() - ended)

    assert min(waits) < GATHER_SECONDS / 2


async def test_what_ends_while_others_run_waits_a_moment_for_company_and_no_longer(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "GATHER_SECONDS", 0.2)
    ends = {body: asyncio.Event() for body in (b"0", b"1", b"2")}

    async def handle(delivery: Delivery) -> None:
        await ends[delivery.body].wait()

    published = await publish(store, 3)
    async with at_work(Worker(store, handle, queues=[QUEUE], observer=seen)):
        await seen.until(lambda: len(seen.runs) == 3)
        ends[b"0"].set()
        await a_few_steps()
        ends[b"1"].set()
        await a_few_steps()
        assert store.calls["settle"] == 0
        # The third still runs, but the moment is over.
        await seen.until_settled(2)
        assert seen.outcomes == [(id_, Done()) for id_ in published[:2]]
        assert store.sizes["settle"] == [2]
        ends[b"2"].set()


async def test_when_no_other_is_left_to_wait_for_it_is_settled_at_once(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "GATHER_SECONDS", 60.0)
    ends = {body: asyncio.Event() for body in (b"0", b"1")}

    async def handle(delivery: Delivery) -> None:
        await ends[delivery.body].wait()

    await publish(store, 2)
    async with at_work(Worker(store, handle, queues=[QUEUE], observer=seen)):
        await seen.until(lambda: len(seen.runs) == 2)
        ends[b"0"].set()
        await a_few_steps()
        assert store.calls["settle"] == 0
        ends[b"1"].set()
        await seen.until_settled(2)

    assert store.sizes["settle"] == [2]


async def test_working_until_idle_waits_for_its_writes_and_asks_for_nothing_meanwhile(
    store: FaultyStore, seen: Seen
) -> None:
    await publish(store, 3)
    gate = store.upset("settle", Gate())
    idle = asyncio.create_task(Worker(store, quick, queues=[QUEUE], observer=seen).run_until_idle())
    await soon(gate.reached.wait())
    await a_few_steps()
    assert store.calls["claim"] == 1

    gate.open()
    await soon(idle)

    assert store.calls["claim"] == 2


async def test_what_ends_while_a_write_is_in_flight_goes_with_the_next(
    store: FaultyStore, seen: Seen
) -> None:
    gate = store.upset("settle", Gate())
    handler = Handler()
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await publish(store)
        await soon(gate.reached.wait())
        await publish(store, 30)
        await seen.until(lambda: len(handler.deliveries) == 31)
        gate.open()
        await seen.until_settled(31)

    assert store.sizes["settle"] == [1, 30]


async def test_a_worker_alone_in_its_process_claims_all_that_it_has_room_for(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    await publish(store, 1000)
    worker = Worker(store, handler, queues=[QUEUE], settings=WorkerSettings(max_workers=1000), observer=seen)
    async with at_work(worker):
        await handler.until_running(1000)
        handler.let_go()
        await seen.until_settled(1000)

    assert store.sizes["claim"][0] == 1000


async def test_a_claim_is_short_where_it_holds_up_all_clients_of_the_server(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial = replace(store.capabilities, serial=True)
    monkeypatch.setattr(FaultyStore, "capabilities", serial)
    await publish(store, 1200)
    settings = WorkerSettings(max_workers=1200)
    async with at_work(Worker(store, quick, queues=[QUEUE], settings=settings, observer=seen)):
        await seen.until_settled(1200)

    assert max(store.sizes["claim"]) == SHORT_CLAIM


@pytest.mark.parametrize(("batch", "most"), [(1, SHORT_CLAIM), (400, 400)])
async def test_a_claim_beside_other_workers_of_the_process_is_short(
    store: FaultyStore, seen: Seen, batch: int, most: int
) -> None:
    """Or what has become due for one of them waits until a large claim of another is carried out and read."""
    process = Presence()
    await publish(store, 1200)
    handler = Batched(quick_batch, batch) if batch > 1 else quick
    settings = WorkerSettings(max_workers=1200 // batch)
    worker = Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen, presence=process)
    other = Worker(store, quick, queues=["other"], observer=seen, presence=process)
    async with at_work(other, worker):
        await seen.until_settled(1200)

    assert max(store.sizes["claim"]) == most


async def test_a_single_write_is_bounded(store: FaultyStore, seen: Seen) -> None:
    handler = Handler(held=True)
    await publish(store, 1200)
    settings = WorkerSettings(max_workers=1200)
    async with at_work(Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen)):
        await handler.until_running(1200)
        handler.let_go()
        await seen.until_settled(1200)

    assert SETTLE_BATCH == 1000
    assert store.sizes["settle"] == [1000, 200]


async def test_a_store_that_writes_slowly_is_not_buried_in_finished_messages(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It must go on because the store has answered, not because the next review is due.
    monkeypatch.setattr(room, "REVIEW_SECONDS", 60.0)
    monkeypatch.setattr(claiming, "REVIEW_SECONDS", 60.0)
    handler = Handler()
    worker = Worker(store, handler, queues=[QUEUE], observer=seen)
    gate = store.upset("settle", Gate())
    await publish(store, 9000)

    async with at_work(worker):
        await soon(gate.reached.wait())
        await asyncio.sleep(0.3)
        # What may wait to be written, as much as is fetched ahead at most, and the handlers' own.
        assert worker.in_hand <= 3000 + 2000 + 10
        gate.open()
        await seen.until_settled(9000)

    assert len(handler.deliveries) == 9000
