"""A message that kills its process is buried, and takes no neighbours along."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from nightmail.engine import shutdown as stopping_module
from nightmail.engine.quarantine import Quarantine, is_quarantined
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Release
from nightmail.records import DeadFilter
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore, Gate
from tests.unit.support import QUEUE, Handler, Seen, a_few_steps, at_work, delivery, publish, soon, take

LEASE = timedelta(seconds=60)
POISON = b"poison"


@pytest.fixture(autouse=True)
def short_last_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead process writes nothing: do not let the one we simulate try for long."""
    monkeypatch.setattr(stopping_module, "LAST_WRITES_SECONDS", 0.005)


@dataclass
class Machine:
    """Starts one process after another, each killed in the moment in which it handles the poison."""

    data: MemoryData
    clock: ManualClock
    workers: int
    crashes: int = 0
    handled: set[int] = field(default_factory=set)
    most_deliveries: int = 0
    company: list[tuple[int, int]] = field(default_factory=list)
    """For each crash: which delivery of the poison it was, and how many messages were in hand."""

    async def run_until_nothing_is_left(self) -> None:
        while await self._process_dies():
            self.crashes += 1
            self.clock.advance(LEASE + timedelta(seconds=1))

    async def _process_dies(self) -> bool:
        store = FaultyStore(MemoryStore(self.data, clock=self.clock))
        ended, forever = asyncio.Event(), asyncio.Event()
        dead = False

        async def handle(delivery: Delivery) -> None:
            nonlocal dead
            if dead:
                await forever.wait()
            if delivery.body == POISON:
                in_hand = sum(worker.in_hand for worker in workers)
                self.company.append((delivery.deliveries, in_hand))
                store.sever()
                dead = True
                ended.set()
                await forever.wait()
            self.most_deliveries = max(self.most_deliveries, delivery.deliveries)
            self.handled.add(delivery.id)
            await asyncio.sleep(0)

        quarantine = Quarantine()
        workers = [
            Worker(
                store,
                handle,
                queues=[QUEUE],
                settings=WorkerSettings(max_workers=100, lease=LEASE),
                observer=Seen(),
                quarantine=quarantine,
            )
            for _ in range(self.workers)
        ]
        running = [asyncio.create_task(worker.run_until_idle()) for worker in workers]
        at_the_end = asyncio.gather(*running, return_exceptions=True)
        at_the_end.add_done_callback(lambda _: ended.set())
        await soon(ended.wait())
        for task in running:
            task.cancel()
        await at_the_end
        return dead


@pytest.mark.parametrize(
    ("place", "workers"),
    [(0, 1), (57, 1), (199, 1), (57, 2)],
    ids=["first", "in the midst", "last", "two workers in one process"],
)
async def test_the_poison_is_buried_after_ten_crashes_and_no_innocent_with_it(
    store: FaultyStore, data: MemoryData, clock: ManualClock, place: int, workers: int
) -> None:
    before = await publish(store, place)
    [poison] = await publish(store, body=POISON)
    after = await publish(store, 199 - place)
    machine = Machine(data, clock, workers)

    await machine.run_until_nothing_is_left()

    assert machine.crashes == 10
    [letter] = await store.dead(DeadFilter())
    assert (letter.message_id, letter.reason) == (poison, "max_deliveries")
    assert machine.handled == {*before, *after}
    stats = await store.stats()
    assert (stats[QUEUE].ready, stats[QUEUE].running, stats[QUEUE].dead) == (0, 0, 1)

    # Twice it took others along; from its third delivery on it was alone, and so none of them came any further.
    assert [deliveries for deliveries, _ in machine.company] == list(range(1, 11))
    assert [in_hand for deliveries, in_hand in machine.company if deliveries >= 3] == [1] * 8
    assert machine.most_deliveries <= 3


@pytest.mark.parametrize(("deliveries", "quarantined"), [(1, False), (2, False), (3, True), (10, True)])
def test_a_message_is_quarantined_from_its_third_unexplained_delivery_on(
    deliveries: int, quarantined: bool
) -> None:
    assert is_quarantined(delivery(deliveries=deliveries)) is quarantined


async def lose_workers(store: FaultyStore, clock: ManualClock, times: int, limit: int = 100) -> None:
    """Claim and never settle, so many times."""
    for _ in range(times):
        assert await take(store, limit)
        clock.advance(LEASE + timedelta(seconds=1))


@pytest.mark.parametrize(("losses", "outcome"), [(9, Done()), (10, Dead("max_deliveries", ran=False))])
async def test_a_message_is_buried_unrun_after_the_tenth_loss_and_run_after_the_ninth(
    store: FaultyStore, clock: ManualClock, seen: Seen, losses: int, outcome: Done | Dead
) -> None:
    [published] = await publish(store)
    await lose_workers(store, clock, losses)
    handler = Handler()

    await soon(Worker(store, handler, queues=[QUEUE], observer=seen).run_until_idle())

    assert seen.of(published) == [outcome]
    assert len(handler.deliveries) == (outcome == Done())


async def test_a_quarantined_message_starts_only_when_its_worker_has_nothing_else_in_hand(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    [quarantined] = await publish(store)
    await lose_workers(store, clock, 2)
    innocents = await publish(store, 3)
    handler = Handler(held=True)
    in_hand: list[int] = []

    async def handle(delivery: Delivery) -> None:
        if delivery.id == quarantined:
            in_hand.append(worker.in_hand)
        else:
            await handler(delivery)

    worker = Worker(store, handle, queues=[QUEUE], observer=seen)
    async with at_work(worker):
        await handler.until_running(3)
        await a_few_steps()
        assert quarantined not in seen.runs
        handler.let_go()
        await seen.until_settled(4)

    assert seen.runs == [*innocents, quarantined]
    assert in_hand == [1]


async def test_nothing_is_claimed_while_a_quarantined_message_waits_or_runs(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    await publish(store)
    await lose_workers(store, clock, 2)
    handler = Handler(held=True)
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await handler.until_running(1)
        claims = store.calls["claim"]
        await publish(store, 3)
        await a_few_steps()
        assert store.calls["claim"] == claims
        assert handler.running == 1
        handler.let_go()
        await seen.until_settled(4)


async def test_of_several_quarantined_messages_one_is_kept_and_the_others_go_back_uncounted(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    published = await publish(store, 3)
    await lose_workers(store, clock, 2)
    alone: list[tuple[int, int]] = []

    async def handle(delivery: Delivery) -> None:
        alone.append((delivery.deliveries, worker.in_hand))

    worker = Worker(store, handle, queues=[QUEUE], observer=seen)
    await soon(worker.run_until_idle())

    assert alone == [(3, 1)] * 3
    assert [outcome for _, outcome in seen.outcomes].count(Done()) == 3
    assert {outcome for _, outcome in seen.outcomes if outcome != Done()} == {Release()}
    assert sorted(seen.runs) == published


async def test_a_quarantined_message_is_handed_back_when_the_worker_stops(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    [quarantined] = await publish(store)
    await lose_workers(store, clock, 2)
    await publish(store)
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], observer=seen)
    async with at_work(worker):
        await handler.until_running(1)
        stopping = asyncio.create_task(worker.stop())
        await seen.until_settled(1)
        assert seen.outcomes == [(quarantined, Release())]
        handler.let_go()
        await soon(stopping)

    [found] = await take(store)
    assert (found.id, found.deliveries) == (quarantined, 3)


# ── neighbours in one process ─────────────────────────────────────────────────────────────────────────────


def neighbours(store: FaultyStore, handle: Handler, seen: Seen) -> tuple[Worker, Worker]:
    """Two workers of one process, for the queues `mail` and `post`."""
    quarantine = Quarantine()
    return (
        Worker(store, handle, queues=["mail"], observer=seen, quarantine=quarantine),
        Worker(store, handle, queues=["post"], observer=seen, quarantine=quarantine),
    )


async def test_a_quarantined_message_waits_for_what_its_neighbours_have_in_hand(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    [quarantined] = await publish(store, queue="mail")
    await lose_workers(store, clock, 2)
    [innocent] = await publish(store, queue="post")
    handler = Handler(held=True)
    first, second = neighbours(store, handler, seen)

    async with at_work(second):
        await handler.until_running(1)
        async with at_work(first):
            await seen.until(lambda: len(seen.claims) == 2)
            await a_few_steps()
            assert seen.runs == [innocent]
            handler.let_go()
            await seen.until_settled(2)

    assert seen.runs == [innocent, quarantined]


async def test_neighbours_claim_nothing_while_a_quarantined_message_runs_and_go_on_afterwards(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    [quarantined] = await publish(store, queue="mail")
    await lose_workers(store, clock, 2)
    handler = Handler(held=True)
    first, second = neighbours(store, handler, seen)

    async with at_work(second):
        # The neighbour sleeps, waiting for its bell: being woken must not make it forget the quarantined message.
        await store.until_called("claim")
        async with at_work(first):
            await handler.until_running(1)
            [innocent] = await publish(store, queue="post")
            await a_few_steps()
            assert seen.runs == [quarantined]
            assert second.in_hand == 0
            assert seen.wakes == 1
            handler.let_go()
            await seen.until_settled(2)

    assert seen.runs == [quarantined, innocent]


async def test_a_quarantined_message_waits_for_a_neighbours_claim_that_is_under_way(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    [quarantined] = await publish(store, queue="mail")
    await lose_workers(store, clock, 2)
    [innocent] = await publish(store, queue="post")
    gate = store.upset("claim", Gate())
    first, second = neighbours(store, Handler(), seen)

    async with at_work(second):
        await soon(gate.reached.wait())
        async with at_work(first):
            await seen.until(lambda: len(seen.claims) == 1)
            await a_few_steps()
            assert seen.runs == []
            gate.open()
            await seen.until_settled(2)

    assert seen.runs == [innocent, quarantined]


class IdleWorker:
    """Another worker of this process, with nothing in hand."""

    is_at_rest = True
    has_only_its_quarantined = True


class JustThen(Quarantine):
    """A neighbour's quarantined message takes the process right after a worker has seen that it is free."""

    def __init__(self) -> None:
        super().__init__()
        self.neighbour = IdleWorker()
        self._came = False

    async def wait_open(self) -> None:
        await super().wait_open()
        if not self._came:
            self._came = True
            assert await self.take(self.neighbour)


@pytest.mark.parametrize("run", [Worker.run, Worker.run_until_idle])
async def test_a_quarantined_message_that_comes_in_the_last_moment_is_still_left_alone(
    store: FaultyStore, seen: Seen, run: Callable[[Worker], Coroutine[Any, Any, None]]
) -> None:
    quarantine = JustThen()
    await publish(store)
    worker = Worker(store, Handler(), queues=[QUEUE], observer=seen, quarantine=quarantine)
    running = asyncio.create_task(run(worker))
    await a_few_steps()
    assert quarantine.taken
    assert store.calls["claim"] == 0
    assert not running.done()

    quarantine.free(quarantine.neighbour)
    await seen.until_settled(1)
    await soon(worker.stop())
    await soon(running)


async def test_only_one_quarantined_message_runs_in_a_process_at_a_time(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    [one] = await publish(store, queue="mail")
    [other] = await publish(store, queue="post")
    for _ in range(2):
        await take(store)
        await store.claim(["post"], limit=1, lease=LEASE, token=delivery().token)
        clock.advance(LEASE + timedelta(seconds=1))
    handler = Handler(held=True)
    first, second = neighbours(store, handler, seen)

    async with at_work(first, second):
        await handler.until_running(1)
        await a_few_steps()
        assert handler.running == 1
        handler.let_go()
        await seen.until(lambda: sorted(seen.runs) == [one, other])

    assert handler.most == 1
    assert {each.deliveries for each in handler.deliveries} == {3}


async def test_working_until_idle_waits_for_a_neighbours_quarantined_message_without_spinning(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    await publish(store, queue="mail")
    await lose_workers(store, clock, 2)
    handler = Handler(held=True)
    first, second = neighbours(store, handler, seen)
    async with at_work(first):
        await handler.until_running(1)
        await publish(store, queue="post")
        calls = store.calls.total()
        idle = asyncio.create_task(second.run_until_idle())
        await a_few_steps()
        assert store.calls.total() == calls
        handler.let_go()
        await soon(idle)

    assert len(seen.runs) == 2


async def test_a_neighbour_that_never_comes_to_rest_holds_a_quarantined_message_up_for_a_while_only(
    store: FaultyStore, clock: ManualClock, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.engine.quarantine.PATIENCE_SECONDS", 0.05)
    [quarantined] = await publish(store, queue="mail")
    await lose_workers(store, clock, 2)
    [innocent] = await publish(store, queue="post")
    handler = Handler(held=True)
    first, second = neighbours(store, handler, seen)

    async with at_work(second):
        await handler.until_running(1)
        async with at_work(first):
            await handler.until_running(2)
            assert seen.runs == [innocent, quarantined]
            handler.let_go()


async def test_a_quarantined_message_that_stops_running_leaves_the_process_to_the_others(
    store: FaultyStore, clock: ManualClock, seen: Seen
) -> None:
    await publish(store, queue="mail")
    await lose_workers(store, clock, 2)
    handler = Handler(held=True)
    first, second = neighbours(store, handler, seen)
    running = asyncio.create_task(first.run())
    await handler.until_running(1)
    async with at_work(second):
        await publish(store, queue="post")
        running.cancel()
        await seen.until(lambda: len(seen.runs) == 2)
        handler.let_go()
    with pytest.raises(asyncio.CancelledError):
        await running
