"""A stop takes the grace period and a little more, even when the store answers nothing and cannot be interrupted."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from nightmail import OutboxBroker
from nightmail.engine import shutdown as stopping_module
from nightmail.engine.retry_loop import LAST_PAUSE
from nightmail.engine.settings import WorkerSettings
from nightmail.engine.shutdown import Stopping
from nightmail.engine.worker import Worker
from nightmail.outcome import Done, Release
from nightmail.stores.memory import MemoryData, MemoryStore
from tests.unit.faulty import FaultyStore, Gate, Stuck, lost_request
from tests.unit.moving_time import LoopClock, loop_clock
from tests.unit.support import QUEUE, Handler, Seen, a_few_steps, publish, soon

__all__ = ["loop_clock"]

BRIEF = WorkerSettings(
    max_workers=2, graceful_timeout=timedelta(milliseconds=50), lease=timedelta(milliseconds=120)
)


@pytest.fixture
def short_last_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stopping worker try for a moment only."""
    monkeypatch.setattr(stopping_module, "LAST_WRITES_SECONDS", 0.1)


@pytest.mark.parametrize("verb", ["claim", "settle", "extend"])
async def test_a_store_that_cannot_even_be_interrupted_does_not_hang_the_shutdown(
    store: FaultyStore, seen: Seen, verb: str, short_last_writes: None
) -> None:
    stuck = store.upset(verb, Stuck(), times=None)
    await publish(store, 2)
    handler = Handler(held=verb == "extend")
    worker = Worker(store, handler, queues=[QUEUE], settings=BRIEF, observer=seen)
    running = asyncio.create_task(worker.run())
    await soon(stuck.reached.wait())

    await soon(worker.stop())
    await soon(running)

    assert not worker.is_running
    stuck.open()
    await a_few_steps()


async def test_neither_does_a_recall(store: FaultyStore, seen: Seen, short_last_writes: None) -> None:
    stuck = store.upset("recall", Stuck(), times=None)
    gate = store.upset("claim", Stuck())
    # What is leased no more is not recalled, and a slow machine takes its time to get there.
    settings = replace(BRIEF, lease=timedelta(minutes=1))
    worker = Worker(store, Handler(), queues=[QUEUE], settings=settings, observer=seen)
    running = asyncio.create_task(worker.run())
    await soon(gate.reached.wait())
    gate.open()
    await seen.until(lambda: bool(seen.outages))
    await soon(stuck.reached.wait())

    await soon(worker.stop())
    await soon(running)
    stuck.open()
    await a_few_steps()


async def test_a_stop_that_is_cancelled_does_not_wait_out_the_grace_period_for_a_claim_that_hangs(
    store: FaultyStore, seen: Seen, short_last_writes: None
) -> None:
    stuck = store.upset("claim", Stuck(), times=None)
    settings = replace(BRIEF, graceful_timeout=timedelta(hours=1))
    worker = Worker(store, Handler(), queues=[QUEUE], settings=settings, observer=seen)
    running = asyncio.create_task(worker.run())
    await soon(stuck.reached.wait())
    stopping = asyncio.create_task(worker.stop())
    await a_few_steps()

    stopping.cancel()

    try:
        with pytest.raises(asyncio.CancelledError):
            await soon(stopping)
        await soon(running)
        assert not worker.is_running
    finally:
        stuck.open()
        await a_few_steps()


async def test_what_waits_goes_back_while_a_claim_is_still_under_way(store: FaultyStore, seen: Seen) -> None:
    handler = Handler(held=True)
    worker = Worker(store, handler, queues=[QUEUE], settings=WorkerSettings(max_workers=2), observer=seen)
    first = await publish(store)
    running = asyncio.create_task(worker.run())
    await handler.until_running(1)
    gate = store.upset("claim", Gate())
    [late] = await publish(store)
    await soon(gate.reached.wait())
    stopping = asyncio.create_task(worker.stop())
    await a_few_steps()
    handler.let_go()

    # The handler ends, and that is written, before the claim is answered.
    await seen.until_settled(1)
    assert seen.outcomes == [(first[0], Done())]
    assert not stopping.done()
    gate.open()
    await soon(stopping)
    await soon(running)
    assert seen.of(late) == [Release()]
    assert seen.left == [0]


async def test_a_stop_near_the_end_of_an_outage_still_writes_what_has_finished(
    data: MemoryData, loop_clock: LoopClock, seen: Seen
) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    [finished] = await publish(store)
    worker = Worker(store, Handler(), queues=[QUEUE], observer=seen)
    store.upset("settle", lost_request, times=None)
    running = asyncio.create_task(worker.run())
    # By now the pauses between two tries are as long as they get.
    await asyncio.sleep(30)
    tries = store.calls["settle"]

    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(stopping_module.LAST_WRITES_SECONDS - LAST_PAUSE - 0.05)
    store.mend()
    await asyncio.gather(stopping, running)

    assert seen.of(finished) == [Done()]
    assert store.calls["settle"] - tries >= stopping_module.LAST_WRITES_SECONDS // LAST_PAUSE - 1
    assert seen.left == [0]


@pytest.mark.parametrize("grace", [None, 2.0], ids=["default", "two_seconds"])
@pytest.mark.parametrize("refuses", [False, True], ids=["ends_when_cancelled", "refuses_to_end"])
async def test_a_broker_stops_within_its_grace_period_and_five_seconds_whatever_the_store_does(
    data: MemoryData,
    loop_clock: LoopClock,
    monkeypatch: pytest.MonkeyPatch,
    grace: float | None,
    refuses: bool,
) -> None:
    store = FaultyStore(MemoryStore(data, clock=loop_clock))
    # Opened from a URL: the connections of such a store are the broker's to close.
    monkeypatch.setattr("nightmail.broker.broker.open_store", lambda *_, **__: store)
    broker = (
        OutboxBroker("memory://", logger=None)
        if grace is None
        else OutboxBroker("memory://", logger=None, graceful_timeout=grace)
    )
    running, ends = asyncio.Event(), asyncio.Event()

    @broker.subscriber(QUEUE)
    async def handle(body: str) -> None:
        running.set()
        while refuses and not ends.is_set():
            with suppress(asyncio.CancelledError):
                await ends.wait()
        await ends.wait()

    @broker.subscriber("idle")
    async def idle(body: str) -> None: ...

    @broker.subscriber("dead", dead_letters=True)
    async def bury(body: str) -> None: ...

    await broker.start()
    await broker.publish("a", QUEUE)
    await soon(running.wait())
    stuck = store.upset_all(Stuck())
    # Long enough for every loop to be in the middle of a call: looks, renewals, reports.
    await asyncio.sleep(60)

    within = 15.0 if grace is None else grace
    began = time.monotonic()
    stopping = asyncio.create_task(broker.stop())
    await asyncio.wait({stopping}, timeout=within + 5)
    took, stopped = time.monotonic() - began, stopping.done()
    stuck.open()
    ends.set()
    await asyncio.gather(stopping, return_exceptions=True)
    await a_few_steps()

    assert stopped
    # The handler was given all of its time, and the connections were asked to close.
    assert took >= within
    assert store.calls["close"] == 1


def test_all_moments_are_fixed_when_the_stop_is_asked_for() -> None:
    stopping = Stopping(timedelta(seconds=15))
    stopping.ask()
    grace_ends, ends = stopping.grace_ends, stopping.ends
    stopping.ask()

    assert (stopping.grace_ends, stopping.ends) == (grace_ends, ends)
    assert ends - grace_ends == pytest.approx(2.5)
    assert grace_ends < stopping.handlers_left_behind < ends
    assert stopping.last_writes_end() <= ends
    stopping.hurry()
    assert stopping.ends < ends
    assert stopping.in_a_hurry.is_set()
