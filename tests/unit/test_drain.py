"""Stopping: nothing new starts, what runs may end, the rest goes back at once, and it all takes a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import anyio
import pytest

from nightmail.engine import shutdown as stopping_module
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import Done, Release, Retry
from nightmail.retry import ConstantRetry
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore, Gate, lost_reply, lost_request
from tests.unit.support import QUEUE, Handler, Seen, a_few_steps, at_work, ids, publish, soon, take

TWO = WorkerSettings(max_workers=2)
NO_GRACE = WorkerSettings(max_workers=2, graceful_timeout=timedelta(0))


@pytest.fixture
def short_last_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stopping worker try for a moment only."""
    monkeypatch.setattr(stopping_module, "LAST_WRITES_SECONDS", 0.05)


@pytest.fixture
def other(data: MemoryData, clock: ManualClock) -> MemoryStore:
    """The same messages, seen by another process."""
    return MemoryStore(data, clock=clock)


async def fetched_ahead(
    store: FaultyStore, seen: Seen, settings: WorkerSettings
) -> tuple[Worker, asyncio.Task[None], asyncio.Event]:
    """A running worker with two handlers stuck and more messages waiting in its memory."""
    hold = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if int(delivery.body) >= 30:
            await hold.wait()

    worker = Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)
    await publish(store, 60)
    running = asyncio.create_task(worker.run())
    await seen.until(lambda: len(seen.runs) == 32)
    await seen.until_settled(30)
    assert worker.in_hand == 30
    return worker, running, hold


@pytest.mark.usefixtures("far_ahead")
async def test_what_has_not_started_is_handed_back_at_once_as_if_never_claimed(
    store: FaultyStore, other: MemoryStore, seen: Seen
) -> None:
    worker, running, hold = await fetched_ahead(store, seen, TWO)

    stopping = asyncio.create_task(worker.stop())
    await seen.until_settled(58)

    # The two handlers still run, and another process has the others already.
    assert worker.in_hand == 2
    found = await take(other, 100)
    assert ids(found) == list(range(33, 61))
    assert {(delivery.attempts, delivery.deliveries) for delivery in found} == {(0, 1)}
    hold.set()
    await soon(stopping)
    await soon(running)
    assert seen.left == [0]


async def test_running_handlers_may_finish_within_the_grace_period(store: FaultyStore, seen: Seen) -> None:
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=seen)
    published = await publish(store, 2)
    async with at_work(worker):
        await handler.until_running(2)
        stopping = asyncio.create_task(worker.stop())
        await a_few_steps()
        assert not stopping.done()
        handler.let_go()
        await soon(stopping)

    assert seen.outcomes == [(id_, Done()) for id_ in published]
    assert handler.cancelled == 0


async def test_past_the_grace_period_handlers_are_cancelled_and_no_attempt_is_counted(
    store: FaultyStore, other: MemoryStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    settings = WorkerSettings(max_workers=2, graceful_timeout=timedelta(milliseconds=50))
    worker = Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen)
    published = await publish(store, 2)
    async with at_work(worker):
        await handler.until_running(2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await soon(worker.stop())
        took = loop.time() - began

    assert took >= 0.05
    assert handler.cancelled == 2
    assert seen.outcomes == [(id_, Release()) for id_ in published]
    assert seen.failures == []
    assert seen.left == [0]
    found = await take(other, 10)
    assert {(delivery.attempts, delivery.deliveries) for delivery in found} == {(0, 1)}


async def test_a_handler_that_turns_its_cancellation_into_an_error_costs_no_attempt_either(
    store: FaultyStore, other: MemoryStore, seen: Seen
) -> None:
    started = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("the driver was interrupted") from None

    worker = Worker(store, handle, queues=[QUEUE], settings=NO_GRACE, observer=seen)
    [published] = await publish(store)
    async with at_work(worker):
        await soon(started.wait())
        await soon(worker.stop())

    assert seen.of(published) == [Release()]
    [found] = await take(other)
    assert found.attempts == 0


async def test_a_handler_that_fails_within_the_grace_period_has_failed(
    store: FaultyStore, seen: Seen
) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        started.set()
        await go_on.wait()
        raise ConnectionError("down")

    [published] = await publish(store)
    settings = WorkerSettings(retry=ConstantRetry(delay=60, jitter=0.0))
    worker = Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)
    async with at_work(worker):
        await soon(started.wait())
        stopping = asyncio.create_task(worker.stop())
        await a_few_steps()
        go_on.set()
        await soon(stopping)

    assert seen.of(published) == [Retry(timedelta(minutes=1))]


async def test_a_handler_whose_own_time_is_up_within_the_grace_period_has_failed(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    settings = WorkerSettings(
        handler_timeout=timedelta(milliseconds=50), retry=ConstantRetry(delay=60, jitter=0.0)
    )
    [published] = await publish(store)
    worker = Worker(store, handler, queues=[QUEUE], settings=settings, observer=seen)
    async with at_work(worker):
        await handler.until_running(1)
        await soon(worker.stop())

    assert seen.of(published) == [Retry(timedelta(minutes=1))]


async def test_a_handler_cancelled_before_its_first_step_is_handed_back_like_any_other(
    store: FaultyStore,
) -> None:
    class CancelsOnClaim(Seen):
        def claimed(self, deliveries: Sequence[Delivery]) -> None:
            super().claimed(deliveries)
            running.cancel()

    seen = CancelsOnClaim()
    published = await publish(store, 2)
    worker = Worker(store, Handler(held=True), queues=[QUEUE], settings=TWO, observer=seen)
    running = asyncio.create_task(worker.run())
    with pytest.raises(asyncio.CancelledError):
        await soon(running)

    assert seen.outcomes == [(id_, Release()) for id_ in published]
    assert seen.left == [0]


async def test_a_handler_that_still_says_how_it_ended_when_cancelled_is_believed(
    store: FaultyStore, seen: Seen
) -> None:
    started = asyncio.Event()

    async def handle(delivery: Delivery) -> Retry | None:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Retry(timedelta(minutes=1))
        return None

    [published] = await publish(store)
    worker = Worker(store, handle, queues=[QUEUE], settings=NO_GRACE, observer=seen)
    async with at_work(worker):
        await soon(started.wait())
        await soon(worker.stop())

    assert seen.of(published) == [Retry(timedelta(minutes=1))]


async def test_what_a_claim_brings_after_the_stop_is_handed_back_unstarted(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler()
    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=seen)
    published = await publish(store, 2)
    gate = store.upset("claim", Gate())
    async with at_work(worker):
        await soon(gate.reached.wait())
        stopping = asyncio.create_task(worker.stop())
        await a_few_steps()
        gate.open()
        await soon(stopping)

    assert handler.deliveries == []
    assert seen.outcomes == [(id_, Release()) for id_ in published]


async def test_what_a_claim_took_whose_reply_was_lost_is_handed_back_too(
    store: FaultyStore, other: MemoryStore, seen: Seen
) -> None:
    handler = Handler()
    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=seen)
    await publish(store, 2)
    store.upset("claim", lost_reply)
    async with at_work(worker):
        await seen.until(lambda: bool(seen.outages))
        await soon(worker.stop())

    assert handler.deliveries == []
    assert seen.outcomes == []
    assert {delivery.deliveries for delivery in await take(other, 2)} == {1}


@pytest.mark.usefixtures("short_last_writes")
async def test_what_a_lost_claim_took_does_not_hang_the_shutdown(store: FaultyStore, seen: Seen) -> None:
    await publish(store)
    store.upset("claim", lost_reply)
    store.upset("recall", Gate())
    worker = Worker(store, Handler(), queues=[QUEUE], settings=TWO, observer=seen)
    async with at_work(worker):
        await seen.until(lambda: bool(seen.outages))
        async with asyncio.timeout(10):
            await worker.stop()

    assert seen.outcomes == []


async def test_nothing_is_claimed_after_the_stop(store: FaultyStore, seen: Seen) -> None:
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=seen)
    await publish(store, 2)
    async with at_work(worker):
        await handler.until_running(2)
        claims = store.calls["claim"]
        stopping = asyncio.create_task(worker.stop())
        await publish(store, 5)
        handler.let_go()
        await soon(stopping)

    assert store.calls["claim"] == claims
    assert len(handler.deliveries) == 2


async def test_a_handler_that_refuses_to_end_is_left_behind_and_reported(
    store: FaultyStore, seen: Seen, short_last_writes: None
) -> None:
    started, hold = asyncio.Event(), asyncio.Event()

    async def stubborn(delivery: Delivery) -> None:
        started.set()
        while not hold.is_set():
            try:
                await hold.wait()
            except asyncio.CancelledError:
                continue

    await publish(store)
    worker = Worker(store, stubborn, queues=[QUEUE], settings=NO_GRACE, observer=seen)
    async with at_work(worker):
        await soon(started.wait())
        await soon(worker.stop())
        assert seen.left == [1]

    # Its end comes during the next run, which goes on undisturbed. Its lease still holds: the end is written.
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with at_work(worker):
        hold.set()
        await seen.until_settled(1)
        await publish(store)
        await seen.until_settled(2)
    assert seen.left == [1, 0]
    assert problems == []


@pytest.mark.usefixtures("short_last_writes")
async def test_a_dead_store_does_not_hang_the_shutdown_and_what_is_left_is_reported(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=seen)
    await publish(store, 2)
    async with at_work(worker):
        await handler.until_running(2)
        store.upset("settle", lost_request, times=None)
        handler.let_go()
        async with asyncio.timeout(10):
            await worker.stop()

    assert seen.left == [2]
    assert seen.outcomes == []


@pytest.mark.usefixtures("short_last_writes")
async def test_a_store_that_never_answers_does_not_hang_the_shutdown(store: FaultyStore, seen: Seen) -> None:
    handler = Handler()
    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=seen)
    await publish(store, 2)
    gate = store.upset("settle", Gate())
    async with at_work(worker):
        await soon(gate.reached.wait())
        async with asyncio.timeout(10):
            await worker.stop()

    assert seen.left == [2]


@pytest.mark.usefixtures("short_last_writes")
async def test_a_store_that_comes_back_in_time_gets_the_last_writes(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping_module, "LAST_WRITES_SECONDS", 5.0)
    handler = Handler()
    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=seen)
    published = await publish(store, 2)
    store.upset("settle", lost_request, times=2)
    async with at_work(worker):
        await store.until_called("settle")
        await soon(worker.stop())

    assert seen.outcomes == [(id_, Done()) for id_ in published]
    assert seen.left == [0]


@pytest.mark.usefixtures("far_ahead")
async def test_cancelling_the_run_hands_everything_back_at_once(
    store: FaultyStore, other: MemoryStore, seen: Seen
) -> None:
    # The grace period is left at its fifteen seconds: none of them is used.
    worker, running, _ = await fetched_ahead(store, seen, TWO)
    loop = asyncio.get_running_loop()
    began = loop.time()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)

    assert loop.time() - began < 10
    assert not worker.is_running
    assert seen.left == [0]
    found = await take(other, 100)
    assert len(found) == 30
    assert {(delivery.attempts, delivery.deliveries) for delivery in found} == {(0, 1)}


async def test_cancelling_the_run_again_does_not_cut_its_last_writes_short(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=seen)
    published = await publish(store, 2)
    gate = store.upset("settle", Gate())
    running = asyncio.create_task(worker.run())
    await handler.until_running(2)

    for _ in range(3):
        running.cancel()
        await a_few_steps()
    await soon(gate.reached.wait())
    assert not running.done()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)

    assert seen.outcomes == [(id_, Release()) for id_ in published]
    assert seen.left == [0]


async def test_a_cancelled_anyio_task_group_waits_until_everything_is_handed_back(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=seen)
    published = await publish(store, 2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await handler.until_running(2)
        tasks.cancel_scope.cancel()

    assert not worker.is_running
    assert seen.outcomes == [(id_, Release()) for id_ in published]
    assert seen.left == [0]


async def test_cancelling_the_run_during_a_stop_cuts_the_grace_period_short(
    store: FaultyStore, seen: Seen
) -> None:
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], settings=TWO, observer=seen)
    published = await publish(store, 2)
    running = asyncio.create_task(worker.run())
    await handler.until_running(2)
    stopping = asyncio.create_task(worker.stop())
    await a_few_steps()

    running.cancel()
    async with asyncio.timeout(10):
        await stopping

    assert handler.cancelled == 2
    assert seen.outcomes == [(id_, Release()) for id_ in published]
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.usefixtures("far_ahead")
async def test_stopping_ends_work_until_idle_with_messages_still_waiting_in_memory(
    store: FaultyStore, seen: Seen
) -> None:
    hold = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if int(delivery.body) >= 30:
            await hold.wait()

    worker = Worker(store, handle, queues=[QUEUE], settings=NO_GRACE, observer=seen)
    await publish(store, 60)
    running = asyncio.create_task(worker.run_until_idle())
    await seen.until(lambda: len(seen.runs) == 32)

    async with asyncio.timeout(10):
        await worker.stop()
        await running

    assert seen.left == [0]
    assert sorted(id_ for id_, outcome in seen.outcomes if outcome == Release()) == list(range(31, 61))


async def test_stopping_ends_work_until_idle_while_the_store_is_down(store: FaultyStore, seen: Seen) -> None:
    store.upset("claim", lost_request, times=None)
    worker = Worker(store, Handler(), queues=[QUEUE], observer=seen)
    running = asyncio.create_task(worker.run_until_idle())
    await seen.until(lambda: len(seen.outages) >= 1)

    async with asyncio.timeout(10):
        await worker.stop()
        await running

    assert seen.left == [0]


async def test_an_idle_worker_stops_at_once(store: FaultyStore, seen: Seen) -> None:
    worker = Worker(store, Handler(), queues=[QUEUE], observer=seen)
    async with at_work(worker):
        await store.until_called("claim")
        async with asyncio.timeout(4):
            await worker.stop()

    assert store.calls == {"claim": 1, "report": 1, "sign_off": 1}
    assert seen.left == [0]


async def test_a_worker_that_waits_out_an_outage_stops_at_once(
    store: FaultyStore, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.engine.next_look.FIRST_BACKOFF", 600.0)
    monkeypatch.setattr("nightmail.engine.next_look.LONGEST_BACKOFF", 600.0)
    store.upset("claim", lost_request, times=None)
    worker = Worker(store, Handler(), queues=[QUEUE], observer=seen)
    async with at_work(worker):
        await seen.until(lambda: len(seen.outages) == 1)
        store.mend()  # Its recall is answered at once.
        await soon(worker.stop())
