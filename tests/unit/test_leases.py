"""Leases look after themselves: renewed while a message runs, waits, or cannot be written yet."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from nightmail.controls import worker_of
from nightmail.engine import claiming, room
from nightmail.engine.leases import Keeper, Leases
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery, Message
from nightmail.outcome import Done, WriteResult
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.stores.sqlite import SQLiteStore
from tests.unit.faulty import Call, FaultyStore, Gate, lost_request
from tests.unit.support import QUEUE, Handler, Seen, at_work, delivery, ids, publish, soon, take

SHORT = timedelta(milliseconds=450)


@pytest.fixture
def store(data: MemoryData) -> FaultyStore:
    """A store on real time: here leases end by themselves."""
    return FaultyStore(MemoryStore(data))


@pytest.fixture
def other(data: MemoryData) -> MemoryStore:
    """The same messages, seen by another process."""
    return MemoryStore(data)


async def others_get_none(other: MemoryStore, leases: int = 2) -> None:
    """Try to take something over for as long as so many leases last."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SHORT.total_seconds() * leases
    while loop.time() < end:
        assert await take(other, 100) == []
        await asyncio.sleep(0.01)


async def test_a_handler_may_run_for_many_leases(store: FaultyStore, other: MemoryStore, seen: Seen) -> None:
    handler = Handler(held=True)
    [published] = await publish(store)
    settings = WorkerSettings(lease=SHORT)
    async with at_work(Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen)):
        await handler.until_running(1)
        await others_get_none(other)
        handler.let_go()
        await seen.until_settled(1)

    assert seen.outcomes == [(published, Done())]
    assert len(handler.deliveries) == 1
    # About every third of a lease, and not at every look.
    assert 2 <= store.calls["extend"] <= 8


async def test_every_claim_has_a_token_of_its_own(store: FaultyStore, seen: Seen) -> None:
    tokens = []

    async def handle(delivery: Delivery) -> None:
        tokens.append(delivery.token)

    # Under one token for all, a handler that lost its message to its own worker could still end it.
    async with at_work(Worker(store, handle, queues=[QUEUE], observer=seen)):
        for count in range(1, 6):
            await publish(store)
            await seen.until_settled(count)

    assert len(set(tokens)) == len(tokens) == 5
    assert len({worker_of(token) for token in tokens}) == 1


@pytest.mark.usefixtures("far_ahead")
async def test_a_message_waiting_in_memory_keeps_its_lease_and_still_runs(
    store: FaultyStore, other: MemoryStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Or it would be handed back before its lease has to be renewed.
    monkeypatch.setattr(room, "REVIEW_SECONDS", 60.0)
    monkeypatch.setattr(claiming, "REVIEW_SECONDS", 60.0)
    hold = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.body == b"30":
            await hold.wait()

    settings = WorkerSettings(max_workers=1, lease=SHORT)
    worker = Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)
    await publish(store, 60)
    async with at_work(worker):
        await seen.until_settled(30)
        assert worker.in_hand == 30
        await others_get_none(other)
        assert store.sizes["extend"][-1] == 30
        hold.set()
        await seen.until_settled(60)

    assert seen.runs == list(range(1, 61))
    assert seen.lost == []


async def test_what_is_finished_but_not_yet_written_keeps_its_lease(
    store: FaultyStore, other: MemoryStore, seen: Seen
) -> None:
    published = await publish(store, 3)
    gate = store.upset("settle", Gate())
    settings = WorkerSettings(lease=SHORT)
    async with at_work(Worker(store, Handler(), queues=[QUEUE], settings=settings, observer=seen)):
        await soon(gate.reached.wait())
        await others_get_none(other)
        gate.open()
        await seen.until_settled(3)

    assert seen.outcomes == [(id_, Done()) for id_ in published]


async def test_handlers_that_finish_during_a_stop_keep_their_leases(
    store: FaultyStore, other: MemoryStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    [published] = await publish(store)
    settings = WorkerSettings(lease=SHORT)
    worker = Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen)
    async with at_work(worker):
        await handler.until_running(1)
        stopping = asyncio.create_task(worker.stop())
        await others_get_none(other)
        handler.let_go()
        await soon(stopping)

    assert seen.outcomes == [(published, Done())]


async def test_nothing_is_renewed_once_it_is_settled(store: FaultyStore, seen: Seen) -> None:
    settings = WorkerSettings(lease=SHORT)
    await publish(store, 5)
    async with at_work(Worker(store, Handler(), queues=[QUEUE], settings=settings, observer=seen)):
        await seen.until_settled(5)
        renewals = store.calls["extend"]
        await asyncio.sleep(SHORT.total_seconds())

    assert store.calls["extend"] == renewals


async def test_a_dead_process_is_replaced_after_one_lease(
    store: FaultyStore, other: MemoryStore, seen: Seen
) -> None:
    [abandoned] = await publish(store)
    await take(other, lease=SHORT)
    handler = Handler()
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await store.until_called("claim")
        assert handler.deliveries == []
        await seen.until_settled(1)

    assert ids(handler.deliveries) == [abandoned]
    assert handler.deliveries[0].deliveries == 2
    # One look at the start, one when the lease ends: sleeping exactly long enough.
    assert store.calls["claim"] <= 3


async def bug(call: Call) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(("fault", "error"), [(lost_request, StoreUnavailable), (bug, ZeroDivisionError)])
async def test_a_renewal_that_fails_is_told_of_and_tried_again_before_the_lease_ends(
    store: FaultyStore, other: MemoryStore, seen: Seen, fault: object, error: type[Exception]
) -> None:
    handler = Handler(held=True)
    [published] = await publish(store)
    store.upset("extend", fault, times=2)  # type: ignore[type-var]
    settings = WorkerSettings(lease=SHORT * 2)
    async with at_work(Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen)):
        await handler.until_running(1)
        await others_get_none(other, leases=4)
        handler.let_go()
        await seen.until_settled(1)

    assert seen.outcomes == [(published, Done())]
    assert [(type(told), retry_in) for told, retry_in in seen.outages] == [
        (error, timedelta(milliseconds=20))
    ]


async def test_a_waiting_message_whose_lease_was_lost_is_told_of_and_never_run(
    store: FaultyStore, seen: Seen
) -> None:
    hold = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.body == b"10":
            await hold.wait()

    async def thirteen_is_lost(call: Call) -> Sequence[WriteResult]:
        await call()
        return [WriteResult.LOST if each.id == 13 else WriteResult.WRITTEN for each in store.renewing]

    settings = WorkerSettings(max_workers=1, lease=SHORT)
    worker = Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)
    await publish(store, 20)
    async with at_work(worker):
        await seen.until_settled(10)
        assert worker.in_hand == 10
        # The eleventh runs, the twelfth would be next, and the thirteenth is lost.
        store.upset("extend", thirteen_is_lost, times=None)
        await seen.until(lambda: bool(seen.lost))
        assert worker.in_hand == 9
        hold.set()
        await seen.until_settled(19)

    assert seen.lost == [13]
    assert 13 not in seen.runs
    assert len(seen.runs) == 19


async def test_a_running_message_whose_lease_was_lost_runs_on_and_is_told_of_once(
    store: FaultyStore, seen: Seen
) -> None:
    async def lost(call: Call) -> Sequence[WriteResult]:
        return [WriteResult.LOST]

    handler = Handler(held=True)
    [published] = await publish(store)
    store.upset("extend", lost)
    store.upset("settle", lost)
    settings = WorkerSettings(lease=SHORT)
    worker = Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen)
    async with at_work(worker):
        await store.until_called("extend")
        assert handler.running == 1
        assert worker.in_hand == 0
        handler.let_go()
        await seen.until(lambda: bool(seen.lost))

    assert seen.lost == [published]
    assert handler.cancelled == 0
    assert seen.outcomes == []


async def test_what_was_taken_over_before_it_could_start_is_told_of_and_not_run(
    store: FaultyStore, other: MemoryStore, seen: Seen
) -> None:
    async def comes_too_late(call: Call) -> object:
        claimed = await call()
        await asyncio.sleep(SHORT.total_seconds() * 1.2)
        assert await take(other)
        return claimed

    handler = Handler()
    [published] = await publish(store)
    store.upset("claim", comes_too_late)
    settings = WorkerSettings(lease=SHORT)
    async with at_work(Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen)):
        await seen.until(lambda: bool(seen.lost))

    assert seen.lost == [published]
    assert handler.deliveries == []


# ── a blocked event loop ──────────────────────────────────────────────────────────────────────────────────


async def test_a_blocked_event_loop_does_not_lose_its_messages(tmp_path: Path, seen: Seen) -> None:
    lease = timedelta(milliseconds=300)
    file = tmp_path / "messages.db"
    blocked, released = threading.Event(), threading.Event()
    taken_over: list[int] = []
    tries = 0

    async def another_process() -> None:
        nonlocal tries
        other = SQLiteStore(file)
        await other.open()
        try:
            blocked.wait(10)
            while not released.is_set():
                taken_over.extend(ids(await take(other, 10)))
                tries += 1
                await asyncio.sleep(0.02)
        finally:
            await other.close()

    async def handle(delivery: Delivery) -> None:
        blocked.set()
        time.sleep(lease.total_seconds() * 3)
        released.set()

    store = SQLiteStore(file)
    await store.open()
    try:
        await store.migrate()
        published = await store.publish(Message(queue=QUEUE, body=b""))
        thread = threading.Thread(target=asyncio.run, args=(another_process(),))
        thread.start()
        settings = WorkerSettings(lease=lease)
        await soon(Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen).run_until_idle())
        await asyncio.to_thread(thread.join)
    finally:
        released.set()
        await store.close()

    assert tries >= 10
    assert taken_over == []
    assert seen.outcomes == [(published, Done())]
    assert seen.lost == []


# ── the keeper and its leases, on a clock of their own ────────────────────────────────────────────────────


class Renewals:
    """A store's `extend` that notes what it was asked and answers as told."""

    def __init__(self, *answers: WriteResult) -> None:
        self.asked: list[list[int]] = []
        self._answers = answers

    async def __call__(self, deliveries: Sequence[Delivery], lease: timedelta) -> Sequence[WriteResult]:
        assert lease == timedelta(seconds=60)
        self.asked.append(ids(deliveries))
        return self._answers or [WriteResult.WRITTEN] * len(deliveries)


class Bench:
    """A keeper of one-minute leases whose clock the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lost: list[int] = []
        self.leases = Leases()
        self.keeper = Keeper(
            self.leases,
            timedelta(seconds=60),
            lost=lambda delivery: self.lost.append(delivery.id),
            failed=lambda error, retry_in: None,
            now=lambda: self.now,
        )


async def test_a_lease_is_renewed_when_a_quarter_of_it_is_gone_and_not_before() -> None:
    bench, renewals = Bench(), Renewals()
    bench.leases.add([delivery(id=1)], until=60.0)

    for bench.now in (0.0, 10.0, 15.0, 15.1, 25.0, 30.1, 30.2):
        before = len(renewals.asked)
        await bench.keeper.renew(renewals)
        assert len(renewals.asked) - before == (bench.now in (15.1, 30.2)), bench.now


async def test_only_leases_that_need_it_are_renewed() -> None:
    bench, renewals = Bench(), Renewals()
    bench.leases.add([delivery(id=1)], until=60.0)
    bench.leases.add([delivery(id=2)], until=75.0)
    bench.now = 29.0

    await bench.keeper.renew(renewals)

    assert renewals.asked == [[1]]


async def test_a_renewed_lease_surely_holds_from_the_moment_the_renewal_was_sent() -> None:
    bench, kept = Bench(), delivery(id=1)

    async def slow(deliveries: Sequence[Delivery], lease: timedelta) -> Sequence[WriteResult]:
        bench.now += 7.0
        return [WriteResult.WRITTEN]

    bench.leases.add([kept], until=60.0)
    bench.now = 30.0
    await bench.keeper.renew(slow)

    assert bench.leases.surely_holds(kept, 89.9)
    assert not bench.leases.surely_holds(kept, 90.0)


async def test_a_lost_lease_is_told_of_once_and_renewed_no_more() -> None:
    bench, renewals = Bench(), Renewals(WriteResult.LOST, WriteResult.WRITTEN)
    lost, kept = delivery(id=1), delivery(id=2)
    bench.leases.add([lost, kept], until=60.0)

    bench.now = 30.0
    await bench.keeper.renew(renewals)
    assert bench.lost == [1]
    assert not bench.leases.surely_holds(lost, 30.0)
    assert len(bench.leases) == 1

    bench.now = 60.0
    await bench.keeper.renew(Renewals())
    assert bench.lost == [1]


async def test_a_locked_message_is_neither_lost_nor_renewed_and_is_asked_for_again() -> None:
    bench, renewals = Bench(), Renewals(WriteResult.BUSY)
    kept = delivery(id=1)
    bench.leases.add([kept], until=60.0)

    for bench.now in (30.0, 40.0):
        await bench.keeper.renew(renewals)

    assert renewals.asked == [[1], [1]]
    assert bench.lost == []
    assert bench.leases.surely_holds(kept, 59.9)
    assert not bench.leases.surely_holds(kept, 60.0)


async def test_renewals_go_in_batches_of_a_thousand() -> None:
    bench, renewals = Bench(), Renewals()
    bench.leases.add([delivery(id=number) for number in range(2500)], until=60.0)
    bench.now = 30.0

    await bench.keeper.renew(renewals)

    assert [len(asked) for asked in renewals.asked] == [1000, 1000, 500]


def test_a_lease_surely_holds_until_its_moment() -> None:
    leases, held = Leases(), delivery(id=1)
    leases.add([held], until=60.0)

    assert leases.surely_holds(held, 59.9)
    assert not leases.surely_holds(held, 60.0)
    assert not leases.surely_holds(delivery(id=2), 0.0)
    assert leases.surely_held([held, delivery(id=2)], 59.9) == [held]
    assert leases.surely_held([held], 60.0) == []


def test_dropping_an_old_lease_leaves_a_newer_one_on_the_same_message() -> None:
    leases, old, new = Leases(), delivery(id=1), delivery(id=1)
    leases.add([old], until=60.0)
    leases.add([new], until=120.0)

    leases.drop([old])

    assert leases.surely_holds(new, 100.0)
    assert not leases.surely_holds(old, 0.0)
    leases.drop([new])
    assert len(leases) == 0
