"""How soon an idle worker starts a handler: after a commit, and after a timer's due time."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from benchmarks.places import Place
from benchmarks.report import Figure, at_most, percentile, plain
from nightmail import OutboxBroker
from nightmail.annotations import OutboxMessage

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

IDLE_SECONDS = 15.0
QUIET_SECONDS = 10.0


async def pick_up(place: Place, count: int) -> list[Figure]:
    """From just before COMMIT is sent to the handler's first line, one message at a time.

    Where publishing joins no SQL transaction, from just before the message is published.
    """
    broker = OutboxBroker(place.url, create_tables=True, logger=None)
    started: asyncio.Queue[float] = asyncio.Queue()

    @broker.subscriber("pick-up")
    async def take(number: int) -> None:
        started.put_nowait(time.perf_counter())

    waits = []
    await broker.start()
    async with place.transactions() as engine:
        for number in range(count):
            await asyncio.sleep(0.02 + random.random() * 0.03)
            sent = await _publish(broker, number, engine)
            waits.append((await started.get() - sent) * 1000)
    idle = await _idle_queries(place) if place.bounds.idle_queries is not None else None
    await broker.stop()
    p95, bound = percentile(waits, 0.95), place.bounds.pick_up_ms
    figures = [
        plain("idle pick-up p50", percentile(waits, 0.5), "ms", 1),
        plain("idle pick-up p95", p95, "ms", 1)
        if bound is None
        else at_most("idle pick-up p95", p95, bound, "ms"),
    ]
    if idle is not None and place.bounds.idle_queries is not None:
        figures.append(at_most("queries when idle", idle, place.bounds.idle_queries, "a second"))
    return figures


async def _publish(broker: OutboxBroker, number: int, engine: AsyncEngine | None) -> float:
    """Publish, and when it was sent."""
    if engine is None:
        sent = time.perf_counter()
        await broker.publish(number, "pick-up")
        return sent
    async with engine.connect() as connection:
        await broker.publish(number, "pick-up", session=connection)
        sent = time.perf_counter()
        await connection.commit()
        return sent


async def _idle_queries(place: Place) -> float:
    """How many requests a second an idle worker makes."""
    before = await place.round_trips() or 0
    await asyncio.sleep(QUIET_SECONDS)
    return ((await place.round_trips() or 0) - before) / QUIET_SECONDS


async def lateness(place: Place, count: int) -> list[Figure]:
    """Handler start minus due time, for timers spread over seconds, with a worker that was idle for 15 s before."""
    broker = OutboxBroker(place.url, create_tables=True, logger=None)
    late: list[float] = []
    all_fired = asyncio.Event()

    @broker.subscriber("timers")
    async def fire(number: int, msg: OutboxMessage) -> None:
        late.append((datetime.now(UTC) - msg.due_at).total_seconds() * 1000)
        if len(late) == count:
            all_fired.set()

    await broker.start()
    for number in range(count):
        spread = random.random() * count / 20
        await broker.publish(number, "timers", activate_in=timedelta(seconds=IDLE_SECONDS + 1 + spread))
    await all_fired.wait()
    await broker.stop()
    return [
        plain("timer lateness p50", percentile(late, 0.5), "ms", 1),
        at_most("timer lateness p99", percentile(late, 0.99), place.bounds.lateness_ms, "ms"),
        Figure("earliest", f"{min(late):.2f} ms", "never early", min(late) >= 0),
    ]
