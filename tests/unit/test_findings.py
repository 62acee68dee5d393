"""What a doctor finds of real workers: by their own reports, with the thresholds that everyone has."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from nightmail.breaker import Breaker
from nightmail.engine.presence import Presence
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.findings import Code, Finding
from nightmail.message import Delivery
from nightmail.operations.doctor import Thresholds, diagnose
from nightmail.outcome import Dead, Done, Retry
from nightmail.retry import ConstantRetry
from nightmail.store import Settlement
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.unit.faulty import FaultyStore
from tests.unit.moving_time import LoopClock, loop_clock
from tests.unit.support import QUEUE, Handler, Seen, at_work, publish

__all__ = ["loop_clock"]

# The clock of these tests is not that of this machine.
USUAL = Thresholds(skew=timedelta(days=100_000))
ONE_AT_A_TIME = WorkerSettings(max_workers=1)


async def found(store: MemoryStore) -> dict[Code, Finding]:
    """Everything that is found, by kind."""
    return {each.code: each for each in await diagnose(store, USUAL)}


async def test_a_handler_that_hangs_keeps_its_worker_busy_until_it_ends(
    data: MemoryData, loop_clock: LoopClock, seen: Seen
) -> None:
    store = MemoryStore(data, clock=loop_clock)
    first, *_ = await publish(store, 3)
    unattended = await found(store)
    handler = Handler(held=True)

    async with at_work(Worker(store, handler, queues=[QUEUE], settings=ONE_AT_A_TIME, observer=seen)):
        await handler.until_running(1)
        await asyncio.sleep(30.0)
        soon = await found(store)
        await asyncio.sleep(16 * 60.0)
        late = await found(store)
        handler.let_go()
        await seen.until_settled(3)
        await asyncio.sleep(11.0)
        ended = await found(store)
        await asyncio.sleep(20.0)
        in_order = await found(store)

    assert set(unattended) == {Code.NO_WORKER}
    assert set(soon) == set(in_order) == set()
    assert set(late) == {Code.WORKERS_BUSY, Code.HANDLER_LONG}
    assert "the only handler in 1 process is busy" in late[Code.WORKERS_BUSY].evidence
    assert late[Code.HANDLER_LONG].evidence.startswith(f"message {first}, attempt 1, on ")
    # Until it has not run for so long in two reports.
    assert set(ended) == {Code.HANDLER_OUTLIVES_LEASE}
    assert ended[Code.HANDLER_OUTLIVES_LEASE].evidence.startswith("one took 16 min 30 s of late on ")


async def test_leases_that_a_worker_lost_are_found_until_it_starts_again(
    data: MemoryData, loop_clock: LoopClock, seen: Seen
) -> None:
    store = MemoryStore(data, clock=loop_clock)
    await publish(store, 3)
    handler = Handler(held=True)

    async with at_work(Worker(store, handler, queues=[QUEUE], observer=seen)):
        await handler.until_running(3)
        # Taken from it, and given to another: it hears of that when it writes what became of them.
        for token in {delivery.token for delivery in handler.deliveries}:
            await store.recall([QUEUE], token)
        others = await store.claim([QUEUE], limit=9, lease=timedelta(hours=1), token=uuid4())
        handler.let_go()
        await asyncio.sleep(11.0)
        lost = await found(store)

    assert "workers lost 3 leases since they started" in lost[Code.LEASES_LOST].evidence
    await store.settle([Settlement(each, Done()) for each in others.deliveries])
    async with at_work(Worker(store, Handler(), queues=[QUEUE])):
        await asyncio.sleep(1.0)
        assert await found(store) == {}


async def test_a_breaker_that_opens_is_found_until_a_probe_goes_well(
    data: MemoryData, loop_clock: LoopClock, seen: Seen
) -> None:
    store = MemoryStore(data, clock=loop_clock)
    await publish(store, 5)
    is_down = True

    async def handle(_delivery: Delivery) -> None:
        if is_down:
            raise ConnectionError("no answer")

    settings = WorkerSettings(breaker=Breaker(failures=3, within=60, pause=30), retry=ConstantRetry(delay=1))
    async with at_work(Worker(store, handle, queues=[QUEUE], settings=settings, observer=seen)):
        await asyncio.sleep(10.0)
        opened = await found(store)
        is_down = False
        await asyncio.sleep(60.0)
        closed = await found(store)

    assert "3 failures in " in opened[Code.BREAKER_OPEN].evidence
    assert closed == {}


async def test_handlers_that_keep_failing_are_found_by_their_retries_and_then_by_their_letters(
    data: MemoryData, loop_clock: LoopClock
) -> None:
    store = MemoryStore(data, clock=loop_clock)
    await publish(store, 12)

    async def handle(_delivery: Delivery) -> None:
        raise ConnectionError("no answer")

    def retry(delivery: Delivery, error: Exception | None) -> Retry | Dead:
        return (
            Retry(timedelta(seconds=20), repr(error)) if delivery.attempt < 5 else Dead("enough", repr(error))
        )

    async with at_work(Worker(store, handle, queues=[QUEUE], settings=WorkerSettings(retry=retry))):
        await asyncio.sleep(70.0)
        failing = await found(store)
        await asyncio.sleep(60.0)
        dying = await found(store)
        await asyncio.sleep(16 * 60.0)
        waiting = await found(store)

    assert set(failing) == {Code.RETRIES_FAIL}
    assert set(dying) == {Code.DEAD_LETTERS_GROWING}
    assert "ConnectionError('no answer')" in dying[Code.DEAD_LETTERS_GROWING].evidence
    assert set(waiting) == {Code.DEAD_LETTERS_WAITING}


async def test_a_worker_whose_host_has_another_time_is_found_until_its_clock_is_set(
    data: MemoryData,
) -> None:
    store = FaultyStore(MemoryStore(data))
    off = timedelta(hours=3)

    async def report_by_a_clock(off: timedelta) -> list[Finding]:
        presence = Presence(now=lambda: datetime.now(UTC) + off)
        reports = store.calls["report"]
        async with at_work(Worker(store, Handler(), queues=[QUEUE], presence=presence)):
            await store.until_called("report", reports + 1)
            return await diagnose(store, Thresholds(skew=timedelta(hours=1)))

    (ahead,) = await report_by_a_clock(off)
    (behind,) = await report_by_a_clock(-off)

    assert ahead.code is behind.code is Code.CLOCK_SKEW
    assert ahead.what.endswith(" ahead of the store's")
    assert behind.what.endswith(" behind the store's")
    assert await report_by_a_clock(timedelta(0)) == []
