"""Suspects: each is started, the cost follows their number, and others are not held up for long."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from nightmail.engine import current, quarantine, runners
from nightmail.engine.in_flight import InFlight
from nightmail.engine.leases import Leases
from nightmail.engine.quarantine import Quarantine
from nightmail.engine.runners import Runners
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.slot import HandlerSlot
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import Done, Release
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore, Gate
from tests.unit.support import QUEUE, Handler, Seen, a_few_steps, at_work, delivery, publish, soon

LEASE = timedelta(seconds=60)


async def lose_workers(
    store: FaultyStore | MemoryStore, clock: ManualClock, times: int = 2, queue: str = QUEUE
) -> None:
    """Claim and never settle, so many times."""
    for _ in range(times):
        claimed = await store.claim([queue], limit=10_000, lease=LEASE, token=delivery().token)
        assert claimed.deliveries
        clock.advance(LEASE + timedelta(seconds=1))


# ── every message is started ───────────────────────────────────────────────────────────────────────────────


async def test_a_quarantined_message_is_started_by_a_worker_whose_only_runner_has_just_ended(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen
) -> None:
    other = MemoryStore(data, clock=clock)

    async def acks_in_its_own_transaction(delivery: Delivery) -> None:
        async with data.transaction() as transaction:
            await store.ack([delivery], transaction=transaction)
            current.acked_in_transaction([delivery])

    worker = Worker(
        store,
        acks_in_its_own_transaction,
        queues=[QUEUE],
        settings=WorkerSettings(max_workers=1),
        observer=seen,
    )
    await publish(store, 5)
    async with at_work(worker):
        await seen.until(lambda: len(seen.runs) == 5)  # From here on it fetches ahead.
        await a_few_steps()
        gate = store.upset("claim", Gate())
        [quarantined] = await publish(other)
        await lose_workers(other, clock)
        [innocent] = await publish(other)
        await soon(gate.reached.wait())
        gate.open()
        await seen.until(lambda: len(seen.runs) == 7)

    assert seen.runs[5:] == [innocent, quarantined]


async def test_what_comes_in_the_moment_in_which_the_last_runner_ends_is_started() -> None:
    in_flight, loop = InFlight(), asyncio.get_running_loop()
    started: list[int] = []

    def another_comes() -> None:
        in_flight.take([delivery(id=2)])
        under_test.start()

    async def handle(slot: HandlerSlot, now: float) -> float:
        (taken,) = slot.results
        started.append(taken.id)
        in_flight.finish(slot)
        if taken.id == 1:
            loop.call_soon(another_comes)
        return now

    settings = WorkerSettings(max_workers=1)
    under_test = Runners(in_flight, Leases(), handle, settings, batch=1, stopping=asyncio.Event())
    in_flight.take([delivery(id=1)])
    under_test.start()
    await a_few_steps()
    under_test.close()

    assert started == [1, 2]


async def test_a_runner_that_died_is_replaced_while_anything_waits() -> None:
    in_flight = InFlight()
    started: list[int] = []

    async def handle(slot: HandlerSlot, now: float) -> float:
        (taken,) = slot.results
        started.append(taken.id)
        in_flight.finish(slot)
        if taken.id == 1:
            raise ZeroDivisionError
        return now

    settings = WorkerSettings(max_workers=1)
    under_test = Runners(in_flight, Leases(), handle, settings, batch=1, stopping=asyncio.Event())
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    in_flight.take([delivery(id=1), delivery(id=2)])
    under_test.start()
    await a_few_steps()
    under_test.close()

    assert started == [1, 2]


async def test_a_runner_at_rest_does_not_start_a_quarantined_message_before_its_neighbour_has_ended(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every runner rests after each message, and for long enough to meet the quarantined message.
    monkeypatch.setattr(runners, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(runners, "STEPS", 40)
    other = MemoryStore(data, clock=clock)
    [quarantined] = await publish(other, queue="mail")
    await lose_workers(other, clock)
    [innocent] = await publish(other, queue="mail")
    [long] = await publish(other, queue="post")
    handler = Handler(held=True)
    shared = Quarantine()
    neighbour = Worker(store, handler, queues=["post"], observer=seen, quarantine=shared)
    async with at_work(neighbour):
        await handler.until_running(1)
        worker = Worker(
            store,
            Handler(),
            queues=["mail"],
            settings=WorkerSettings(max_workers=2),
            observer=seen,
            quarantine=shared,
        )
        async with at_work(worker):
            await seen.until(lambda: innocent in seen.runs)
            await a_few_steps()
            assert quarantined not in seen.runs
            handler.let_go()
            await seen.until(lambda: quarantined in seen.runs)

    assert seen.runs == [long, innocent, quarantined]


@pytest.mark.parametrize("shares", [False, True])
async def test_a_quarantined_message_waits_for_a_handler_that_has_acknowledged_its_message_and_still_runs(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen, shares: bool
) -> None:
    handler = Handler(held=True)

    async def acks_and_goes_on(delivery: Delivery) -> None:
        if delivery.id == innocent:
            async with data.transaction() as transaction:
                await store.ack([delivery], transaction=transaction)
                current.acked_in_transaction([delivery])
            await handler(delivery)

    [quarantined] = await publish(store, queue="mail")
    await lose_workers(store, clock, times=1, queue="mail")
    await store.claim(["mail"], limit=1, lease=LEASE, token=delivery().token)
    shared = Quarantine()
    queues = [["mail", "post"]] if shares else [["mail"], ["post"]]
    workers = [
        Worker(store, acks_and_goes_on, queues=each, observer=seen, quarantine=shared) for each in queues
    ]
    async with at_work(*workers):
        [innocent] = await publish(store, queue="post")
        await handler.until_running(1)
        assert [worker.in_hand for worker in workers] == [0] * len(workers)
        clock.advance(LEASE)
        await publish(store, queue="mail")  # Wakes the worker up.
        await seen.until(lambda: shared.taken)
        await asyncio.sleep(0.05)
        assert quarantined not in seen.runs
        handler.let_go()
        await seen.until(lambda: quarantined in seen.runs)


# ── what it costs ──────────────────────────────────────────────────────────────────────────────────────────


async def test_recovery_costs_one_claim_for_each_quarantined_message(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    published = await publish(store, 300)
    await lose_workers(store, clock)
    before = store.calls["claim"]

    await asyncio.wait_for(Worker(store, Handler(), queues=[QUEUE], observer=seen).run_until_idle(), 60)

    assert sorted(seen.runs) == published
    assert store.calls["claim"] - before <= 310
    releases = [outcome for _, outcome in seen.outcomes if outcome == Release()]
    assert len(releases) <= 20
    assert [outcome for _, outcome in seen.outcomes].count(Done()) == 300


async def test_quarantined_messages_between_innocents_do_not_send_them_round_and_round(
    store: FaultyStore, data: MemoryData, clock: ManualClock, seen: Seen
) -> None:
    # Every other message is a quarantined message.
    for _ in range(60):
        await publish(store, queue="odd")
    await lose_workers(store, clock, queue="odd")
    await publish(store, 60, queue="even")
    before = store.calls["claim"]

    worker = Worker(store, Handler(), queues=["odd", "even"], observer=seen)
    await asyncio.wait_for(worker.run_until_idle(), 60)

    assert len(seen.runs) == 120
    assert store.calls["claim"] - before <= 150
    assert [outcome for _, outcome in seen.outcomes].count(Release()) <= 150


# ── what it costs the others ───────────────────────────────────────────────────────────────────────────────


class VirtualTime:
    """Sleeping moves the clock, and nothing else does: seconds pass in no time."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    clock = VirtualTime()
    monkeypatch.setattr(quarantine, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(
        quarantine,
        "asyncio",
        SimpleNamespace(Event=asyncio.Event, sleep=clock.sleep, get_running_loop=asyncio.get_running_loop),
    )
    return clock


async def test_a_long_handler_of_a_neighbour_holds_up_the_first_of_several_quarantined_messages_only(
    store: FaultyStore, clock: ManualClock, seen: Seen, virtual: VirtualTime
) -> None:
    quarantined = await publish(store, 6, queue="mail")
    await lose_workers(store, clock, queue="mail")
    [long] = await publish(store, queue="post")
    handler, shared, began = Handler(held=True), Quarantine(), virtual.now
    neighbour = Worker(store, handler, queues=["post"], observer=seen, quarantine=shared)
    worker = Worker(store, Handler(), queues=["mail"], observer=seen, quarantine=shared)
    async with at_work(neighbour):
        await handler.until_running(1)
        async with at_work(worker):
            await seen.until(lambda: len(seen.runs) == 7)
            handler.let_go()

    assert seen.runs == [long, *quarantined]
    # Ten seconds for the first, and moments in which the quarantined message before is still being written.
    assert 10 <= virtual.now - began <= 11


async def test_a_third_subscriber_goes_on_while_a_quarantined_message_waits_for_another(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    [quarantined] = await publish(store, queue="mail")
    await lose_workers(store, clock, queue="mail")
    await publish(store, queue="post")
    held, handler, shared = Handler(held=True), Handler(), Quarantine()
    neighbour = Worker(store, held, queues=["post"], observer=seen, quarantine=shared)
    third = Worker(store, handler, queues=["third"], observer=seen, quarantine=shared)
    worker = Worker(store, Handler(), queues=["mail"], observer=seen, quarantine=shared)
    async with at_work(neighbour):
        await held.until_running(1)
        async with at_work(worker, third):
            await seen.until(lambda: len(seen.claims) == 2)
            await a_few_steps()
            assert shared.taken
            for number in (2, 3, 4):
                await publish(store, queue="third")
                await seen.until(lambda number=number: len(seen.runs) == number)  # type: ignore[misc]
                assert quarantined not in seen.runs
            held.let_go()
            await seen.until(lambda: quarantined in seen.runs)


async def test_a_quarantined_message_that_runs_for_long_does_not_stop_the_others_for_good(
    store: FaultyStore, clock: ManualClock, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "ALONE_SECONDS", 0.05)
    await publish(store, queue="mail")
    await lose_workers(store, clock, queue="mail")
    held, handler, shared = Handler(held=True), Handler(), Quarantine()
    worker = Worker(store, held, queues=["mail"], observer=seen, quarantine=shared)
    third = Worker(store, handler, queues=["third"], observer=seen, quarantine=shared)
    async with at_work(worker, third):
        await held.until_running(1)
        await publish(store, queue="third")
        await publish(store, queue="mail")  # An innocent one of its own queue.
        await held.until_running(2)
        await seen.until(lambda: len(seen.runs) == 3)
        held.let_go()
        await seen.until_settled(3)


async def test_no_second_quarantined_message_starts_while_a_long_one_runs(
    store: FaultyStore, clock: ManualClock, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "ALONE_SECONDS", 0.05)
    published = await publish(store, 2, queue="mail")
    await lose_workers(store, clock, queue="mail")
    held, shared = Handler(held=True), Quarantine()
    worker = Worker(store, held, queues=["mail"], observer=seen, quarantine=shared)
    async with at_work(worker):
        await held.until_running(1)
        await seen.until(lambda: [outcome for _, outcome in seen.outcomes] == [Release()] * 2)
        await a_few_steps()
        claims = store.calls["claim"]
        await a_few_steps()
        assert held.running == 1
        assert store.calls["claim"] == claims
        held.let_go()
        await seen.until(lambda: sorted(seen.runs) == published)
