"""How many messages of each queue a worker ends in a second, as it reports itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from nightmail.engine import current
from nightmail.engine.attempt import Batched
from nightmail.engine.worker import Worker
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.unit.moving_time import LoopClock, loop_clock
from tests.unit.support import QUEUE, Seen, at_work, publish

__all__ = ["loop_clock"]


async def rates(store: MemoryStore) -> dict[str, float]:
    (worker,) = await store.workers()
    (state,) = worker.state["subscribers"]
    found: dict[str, float] = state["ended_per_second"]
    return found


@pytest.mark.parametrize("outcome", [Done(), Dead("no such customer")])
async def test_what_is_done_or_dead_has_ended_and_is_counted_until_the_next_report(
    outcome: Outcome, data: MemoryData, loop_clock: LoopClock, seen: Seen
) -> None:
    store = MemoryStore(data, clock=loop_clock)
    await publish(store, 30)

    async def handle(_delivery: Delivery) -> Outcome:
        return outcome

    async with at_work(Worker(store, handle, queues=[QUEUE, "other"], observer=seen)):
        await seen.until_settled(30)
        await asyncio.sleep(10.5)
        assert await rates(store) == {QUEUE: pytest.approx(3.0, rel=0.1)}
        await asyncio.sleep(10.0)
        assert await rates(store) == {}


async def test_what_is_put_off_has_not_ended(data: MemoryData, loop_clock: LoopClock, seen: Seen) -> None:
    store = MemoryStore(data, clock=loop_clock)
    await publish(store, 3)

    async def handle(_delivery: Delivery) -> Outcome:
        return Postpone(timedelta(hours=1))

    async with at_work(Worker(store, handle, queues=[QUEUE], observer=seen)):
        await seen.until_settled(3)
        await asyncio.sleep(10.5)
        assert await rates(store) == {}


@pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])
async def test_what_a_handler_acked_in_its_own_transaction_has_ended(
    batch: bool, data: MemoryData, loop_clock: LoopClock, seen: Seen
) -> None:
    store = MemoryStore(data, clock=loop_clock)
    await publish(store, 30)

    async def commit(*deliveries: Delivery) -> None:
        async with data.transaction() as transaction:
            await store.ack(deliveries, transaction=transaction)
            current.acked_in_transaction(deliveries)

    async def commit_all(deliveries: Sequence[Delivery]) -> None:
        await commit(*deliveries)

    handler = Batched(commit_all, 10) if batch else commit
    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await asyncio.sleep(10.5)
        assert await store.stats() == {}
        assert await rates(store) == {QUEUE: pytest.approx(3.0, rel=0.1)}
