"""How late the messages of each queue start, as a worker reports itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from nightmail import ConstantRetry, Dead, Retry
from nightmail.engine.attempt import Batched
from nightmail.engine.lateness import Lateness
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import Outcome
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.unit.moving_time import LoopClock, loop_clock
from tests.unit.support import QUEUE, Seen, at_work, delivery, publish

__all__ = ["loop_clock"]


async def lateness(store: MemoryStore) -> dict[str, float]:
    (worker,) = await store.workers()
    (state,) = worker.state["subscribers"]
    found: dict[str, float] = state["late_seconds"]
    return found


@pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])
async def test_what_waited_for_a_worker_starts_late_and_is_told_of_until_the_report_after_next(
    batch: bool, data: MemoryData, loop_clock: LoopClock, seen: Seen
) -> None:
    store = MemoryStore(data, clock=loop_clock)
    await publish(store, 30)
    await publish(store, 1, queue="other", due=timedelta(seconds=64))
    await asyncio.sleep(60.0)

    async def handle(_delivery: Delivery) -> None: ...

    async def handle_all(_deliveries: Sequence[Delivery]) -> None: ...

    handler = Batched(handle_all, 10) if batch else handle
    async with at_work(Worker(store, handler, queues=[QUEUE, "other"], observer=seen)):
        await seen.until_settled(31)
        await asyncio.sleep(10.0)
        assert await lateness(store) == {
            QUEUE: pytest.approx(60.0, abs=1.0),
            "other": pytest.approx(0.0, abs=0.5),
        }
        await asyncio.sleep(30.0)
        assert await lateness(store) == {}


async def test_what_waits_in_a_worker_whose_handlers_are_busy_starts_late(
    data: MemoryData, loop_clock: LoopClock, seen: Seen
) -> None:
    store = MemoryStore(data, clock=loop_clock)
    await publish(store, 3)

    async def handle(_delivery: Delivery) -> None:
        await asyncio.sleep(4.0)

    async with at_work(
        Worker(store, handle, queues=[QUEUE], observer=seen, settings=WorkerSettings(max_workers=1))
    ):
        await seen.until_settled(3)
        await asyncio.sleep(5.0)
        assert await lateness(store) == {QUEUE: pytest.approx(8.0, abs=1.0)}


async def test_after_a_retry_it_is_late_by_its_new_due_time(
    data: MemoryData, loop_clock: LoopClock, seen: Seen
) -> None:
    store = MemoryStore(data, clock=loop_clock)
    await publish(store, 1)

    async def handle(delivery: Delivery) -> Outcome:
        return Dead("enough") if delivery.attempts else Retry(timedelta(seconds=30))

    async with at_work(Worker(store, handle, queues=[QUEUE], observer=seen)):
        await seen.until_settled(2)
        await asyncio.sleep(10.0)
        assert await lateness(store) == {QUEUE: pytest.approx(0.0, abs=0.5)}


def test_of_each_claim_one_message_of_each_queue_is_measured() -> None:
    measured = Lateness()
    deliveries = [delivery(id=number, queue=f"q-{number % 3}") for number in range(300)]

    measured.claimed(deliveries, 0.0)
    assert sorted(measured.sampled) == [297, 298, 299]

    # What was handed back is never measured, and is not kept for ever.
    for number in range(2000):
        measured.claimed([delivery(id=1000 + number)], 0.0)
    assert len(measured.sampled) <= 1001


@pytest.mark.parametrize(
    ("retry", "most"), [(ConstantRetry(max_attempts=4), 4), (lambda _delivery, _error: Dead("no"), None)]
)
def test_it_says_how_often_a_message_is_tried_if_its_policy_does(
    retry: object, most: int | None, data: MemoryData
) -> None:
    async def handle(_delivery: Delivery) -> None: ...

    settings = WorkerSettings(retry=retry)  # type: ignore[arg-type]
    worker = Worker(MemoryStore(data), handle, queues=[QUEUE], settings=settings)

    assert worker.state()["max_attempts"] == most
