"""Handlers that acknowledge in a transaction of their own: its commit decides, and the worker stays out of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import pytest

from nightmail.engine import current
from nightmail.engine.attempt import Batched
from nightmail.engine.in_flight import InFlight
from nightmail.engine.leases import Leases
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.slot import HandlerSlot
from nightmail.engine.worker import Worker
from nightmail.errors import LeaseLost
from nightmail.message import Delivery, Message
from nightmail.outcome import Done, Outcome, Postpone, Release, Retry
from nightmail.records import DeadFilter
from nightmail.retry import ConstantRetry
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore, Gate
from tests.unit.support import (
    QUEUE,
    Seen,
    a_few_steps,
    at_work,
    delivery,
    ids,
    publish,
    publish_timer,
    soon,
    take,
)

LATER = timedelta(minutes=10)
POLICY = ConstantRetry(delay=LATER, jitter=0.0)
ONE = WorkerSettings(max_workers=1, retry=POLICY)


class Crash(Exception):
    """What goes wrong in a handler."""


class Bank:
    """Acknowledges in transactions, as a handler that writes to the same database does."""

    def __init__(self, store: FaultyStore, data: MemoryData) -> None:
        self._store = store
        self._data = data

    async def commit(self, *deliveries: Delivery, failing: bool = False) -> None:
        """Acknowledge these in one transaction, which is rolled back if it is to fail."""
        async with self._data.transaction() as transaction:
            await self._store.ack(deliveries, transaction=transaction)
            current.acked_in_transaction(deliveries)
            if failing:
                raise Crash


@pytest.fixture
def bank(store: FaultyStore, data: MemoryData) -> Bank:
    """The handlers' own database."""
    return Bank(store, data)


async def run_once(
    store: FaultyStore,
    seen: Seen,
    handler: Callable[[Delivery], Awaitable[Outcome | None]] | Batched,
    settings: WorkerSettings = ONE,
) -> None:
    """Run what is due until nothing is."""
    await soon(Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen).run_until_idle())


async def test_after_a_handler_that_acknowledged_itself_nothing_is_written(
    store: FaultyStore, bank: Bank, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        await bank.commit(delivery)

    await publish(store, 3)
    await run_once(store, seen, handle)

    assert store.calls["settle"] == 0
    assert await store.stats() == {}
    assert (seen.outcomes, seen.lost, seen.uncertainties) == ([], [], [])


async def test_it_is_told_of_that_there_was_nothing_to_write(store: FaultyStore, bank: Bank) -> None:
    class Listener(Seen):
        def __init__(self) -> None:
            super().__init__()
            self.acked: list[int] = []

        def acked_in_transaction(self, delivery: Delivery) -> None:
            self.acked.append(delivery.id)

    async def handle(delivery: Delivery) -> None:
        if delivery.id == 2:
            await bank.commit(delivery)

    seen = Listener()
    await publish(store, 2)
    await run_once(store, seen, handle)

    assert seen.acked == [2]
    assert seen.outcomes == [(1, Done())]


async def test_a_handler_that_fails_after_its_commit_has_not_lost_a_lease(
    store: FaultyStore, bank: Bank, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        await bank.commit(delivery)
        raise Crash

    await publish(store)
    await run_once(store, seen, handle)

    assert await store.stats() == {}
    assert await store.dead(DeadFilter()) == []
    [uncertain] = seen.uncertainties
    assert (uncertain.delivery.id, uncertain.outcome) == (1, Retry(LATER))
    assert seen.lost == []
    assert seen.outcomes == []
    assert [(id_, type(error)) for id_, error in seen.failures] == [(1, Crash)]


async def test_a_handler_that_fails_with_its_transaction_is_retried_and_counted(
    store: FaultyStore, bank: Bank, clock: ManualClock, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        await bank.commit(delivery, failing=delivery.attempt < 3)

    attempts: list[int] = []
    await publish(store)
    for _ in range(3):
        await run_once(store, seen, handle)
        clock.advance(LATER)

    assert attempts == [1, 2, 3]
    assert seen.outcomes == [(1, Retry(LATER)), (1, Retry(LATER))]
    assert await store.stats() == {}
    assert (seen.uncertainties, seen.lost) == ([], [])


async def test_a_handler_that_hides_its_rollback_gets_the_message_again_when_the_lease_ends(
    store: FaultyStore, bank: Bank, clock: ManualClock, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        deliveries.append(delivery.deliveries)
        try:
            await bank.commit(delivery, failing=len(deliveries) == 1)
        except Crash:
            return

    deliveries: list[int] = []
    settings = WorkerSettings(lease=timedelta(seconds=60))
    await publish(store)
    await run_once(store, seen, handle, settings)
    assert deliveries == [1]

    clock.advance(timedelta(seconds=60))
    await run_once(store, seen, handle, settings)

    assert deliveries == [1, 2]
    assert await store.stats() == {}


async def test_a_handler_may_postpone_after_a_rollback(store: FaultyStore, bank: Bank, seen: Seen) -> None:
    async def handle(delivery: Delivery) -> Outcome:
        try:
            await bank.commit(delivery, failing=True)
        except Crash:
            return Postpone(LATER)
        return Done()

    await publish(store)
    await run_once(store, seen, handle)

    assert seen.outcomes == [(1, Postpone(LATER))]


async def test_an_ack_that_finds_the_lease_lost_writes_nothing_and_costs_nothing(
    store: FaultyStore, bank: Bank, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        current.acked_in_transaction([delivery])
        raise LeaseLost([delivery.id])

    await publish(store)
    await run_once(store, seen, handle)

    assert seen.lost == [1]
    assert store.calls["settle"] == 0
    assert seen.failures == []


async def test_what_was_acked_is_no_longer_in_hand_and_its_lease_is_not_renewed(
    store: FaultyStore, bank: Bank, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        in_hand.append(worker.in_hand)
        await bank.commit(delivery)
        in_hand.append(worker.in_hand)

    in_hand: list[int] = []
    worker = Worker(store, handle, queues=[QUEUE], settings=ONE, observer=seen)
    await publish(store)
    await soon(worker.run_until_idle())

    assert in_hand == [1, 0]


async def test_the_keeper_asks_for_none_that_was_acked(data: MemoryData, seen: Seen) -> None:
    store = FaultyStore(MemoryStore(data))
    hold = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.id == 1:
            current.acked_in_transaction([delivery])
        await hold.wait()

    settings = WorkerSettings(max_workers=2, lease=timedelta(milliseconds=450))
    await publish(store, 2)
    async with at_work(Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)):
        await store.until_called("extend")
        assert ids(store.renewing) == [2]
        hold.set()


async def test_a_worker_whose_handler_has_acked_is_not_at_rest_while_it_runs(
    store: FaultyStore, bank: Bank, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        await bank.commit(delivery)
        at_rest.append(worker.is_at_rest)

    at_rest: list[bool] = []
    worker = Worker(store, handle, queues=[QUEUE], settings=ONE, observer=seen)
    await publish(store)
    await soon(worker.run_until_idle())

    assert at_rest == [False]
    assert worker.is_at_rest


async def test_what_was_acked_is_no_handlers_own_delivery_any_more(
    store: FaultyStore, data: MemoryData, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        own.append(current.own_delivery(store, QUEUE, "daily"))
        async with data.transaction() as transaction:
            await store.ack([delivery], transaction=transaction)
            current.acked_in_transaction([delivery])
            own.append(current.own_delivery(store, QUEUE, "daily"))
            # So the next one is a plain publish: the name is free already.
            again = Message(queue=QUEUE, body=b"again", due=LATER, timer_id="daily")
            published.append(
                await store.publish(
                    again, transaction=transaction, own=current.own_delivery(store, QUEUE, "daily")
                )
            )

    own: list[Delivery | None] = []
    published: list[int | None] = []
    await publish_timer(store, "daily")
    await run_once(store, seen, handle)

    assert own[0] is not None
    assert own[1] is None
    assert published == [2]
    assert [(each.id, each.timer_id) for each in await store.peek(QUEUE)] == [(2, "daily")]


async def test_an_ack_counts_for_its_own_delivery_only(store: FaultyStore, bank: Bank, seen: Seen) -> None:
    async def handle(delivery: Delivery) -> None:
        if delivery.id == 1:
            await bank.commit(delivery)

    await publish(store, 3)
    await run_once(store, seen, handle)

    assert seen.outcomes == [(2, Done()), (3, Done())]


async def test_a_runner_forgets_what_was_acked_when_the_handler_ends() -> None:
    in_flight, slot = InFlight(), HandlerSlot(asyncio.create_task(asyncio.sleep(0)), Leases())
    in_flight.take([delivery(id=1)])

    in_flight.start(slot, 0.0)
    slot.acked_in_transaction(list(slot.results), locked=True)
    in_flight.finish(slot)

    assert slot.results == {}


async def test_an_ack_of_a_task_that_its_handler_left_behind_means_nothing(
    store: FaultyStore, seen: Seen
) -> None:
    over = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def late(delivery: Delivery) -> None:
        await over.wait()
        current.acked_in_transaction([delivery])

    async def handle(delivery: Delivery) -> None:
        tasks.append(asyncio.create_task(late(delivery)))

    gate = store.upset("settle", Gate())
    worker = Worker(store, handle, queues=[QUEUE], settings=ONE, observer=seen)
    await publish(store)
    async with at_work(worker):
        await soon(gate.reached.wait())
        over.set()
        await soon(tasks[0])
        # Its lease is still needed: how it ended is not written yet.
        assert worker.in_hand == 1
        gate.open()
        await seen.until_settled(1)

    assert seen.outcomes == [(1, Done())]


async def test_an_ack_outside_of_a_handler_does_nothing(store: FaultyStore) -> None:
    await publish(store)
    [taken] = await take(store)

    current.acked_in_transaction([taken])


async def test_a_handler_that_is_cancelled_by_a_stop_within_its_transaction_is_handed_back(
    store: FaultyStore, data: MemoryData, seen: Seen
) -> None:
    inside = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        async with data.transaction() as transaction:
            await store.ack([delivery], transaction=transaction)
            current.acked_in_transaction([delivery])
            inside.set()
            await asyncio.Event().wait()

    worker = Worker(
        store,
        handle,
        queues=[QUEUE],
        settings=WorkerSettings(max_workers=1, graceful_timeout=timedelta(0)),
        observer=seen,
    )
    await publish(store)
    async with at_work(worker):
        await soon(inside.wait())
        await soon(worker.stop())

    assert seen.outcomes == [(1, Release())]
    [found] = await take(store)
    assert (found.attempts, found.deliveries) == (0, 1)


async def test_a_handler_whose_time_is_up_within_its_transaction_is_retried(
    store: FaultyStore, data: MemoryData, seen: Seen
) -> None:
    async def handle(delivery: Delivery) -> None:
        async with data.transaction() as transaction:
            await store.ack([delivery], transaction=transaction)
            current.acked_in_transaction([delivery])
            await asyncio.Event().wait()

    settings = WorkerSettings(max_workers=1, retry=POLICY, handler_timeout=timedelta(milliseconds=50))
    await publish(store)
    # Not until idle: a claim of the memory store would wait for the transaction that is to be cut off.
    async with at_work(Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)):
        await seen.until_settled(1)

    assert seen.outcomes == [(1, Retry(LATER))]
    assert (seen.lost, seen.uncertainties) == ([], [])


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_of_a_batch_only_what_was_not_acked_is_written(
    store: FaultyStore, bank: Bank, seen: Seen
) -> None:
    async def handle(batch: Sequence[Delivery]) -> None:
        await bank.commit(batch[0], batch[2])
        in_hand.append(worker.in_hand)

    in_hand: list[int] = []
    worker = Worker(store, Batched(handle), queues=[QUEUE], settings=ONE, observer=seen)
    await publish(store, 3)
    await soon(worker.run_until_idle())

    assert in_hand == [1]
    assert seen.outcomes == [(2, Done())]
    assert await store.stats() == {}


async def test_a_batch_that_fails_after_its_commit_is_uncertain_where_acked_and_retried_elsewhere(
    store: FaultyStore, bank: Bank, seen: Seen
) -> None:
    async def handle(batch: Sequence[Delivery]) -> None:
        await bank.commit(*batch[:2])
        raise Crash

    await publish(store, 3)
    await run_once(store, seen, Batched(handle))

    assert [each.delivery.id for each in seen.uncertainties] == [1, 2]
    assert seen.outcomes == [(3, Retry(LATER))]
    assert seen.lost == []


async def test_a_batch_that_fails_with_its_transaction_is_retried_as_a_whole(
    store: FaultyStore, bank: Bank, seen: Seen
) -> None:
    async def handle(batch: Sequence[Delivery]) -> None:
        await bank.commit(*batch, failing=True)

    await publish(store, 2)
    await run_once(store, seen, Batched(handle))

    assert seen.outcomes == [(1, Retry(LATER)), (2, Retry(LATER))]
    assert seen.uncertainties == []


async def test_of_a_batch_whose_transaction_found_a_lease_lost_the_others_go_again_at_once(
    store: FaultyStore, data: MemoryData, seen: Seen
) -> None:
    batches: list[list[int]] = []

    async def handle(batch: Sequence[Delivery]) -> None:
        batches.append(ids(batch))
        async with data.transaction() as transaction:
            current.acked_in_transaction(batch)
            if len(batches) == 1:
                # Another caller cancelled it: the lease had ended for the store, and not for us.
                raise LeaseLost([2])
            await store.ack(batch, transaction=transaction)

    await publish(store, 3)
    await run_once(store, seen, Batched(handle))

    assert batches == [[1, 2, 3], [1, 3]]
    assert seen.lost == [2]
    assert seen.outcomes == [(1, Release()), (3, Release())]
    assert seen.uncertainties == []
    assert ids(await take(store, 10)) == []


async def test_of_a_batch_what_was_acked_is_no_own_delivery_and_the_others_still_are(
    store: FaultyStore, bank: Bank, seen: Seen
) -> None:
    async def handle(batch: Sequence[Delivery]) -> None:
        await bank.commit(batch[0])
        own.extend(current.own_delivery(store, QUEUE, name) for name in ("daily", "weekly"))
        await a_few_steps()

    own: list[Delivery | None] = []
    for name in ("daily", "weekly"):
        await publish_timer(store, name)
    await run_once(store, seen, Batched(handle))

    assert [each and each.timer_id for each in own] == [None, "weekly"]
