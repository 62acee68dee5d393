"""How soon an idle worker starts a handler: after a commit, and after a timer's moment."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.places import Place
from benchmarks.report import Figure, at_most, percentile, plain
from nightmail import OutboxBroker
from nightmail.annotations import OutboxMessage

PICK_UP_MS = 10.0
LATENESS_MS = 15.0
IDLE_SECONDS = 15.0


async def pick_up(place: Place, count: int) -> list[Figure]:
    """From just before COMMIT is sent to the handler's first line, one message at a time."""
    broker = OutboxBroker(place.url, create_tables=True, logger=None)
    started: asyncio.Queue[float] = asyncio.Queue()

    @broker.subscriber("pick-up")
    async def take(number: int) -> None:
        started.put_nowait(time.perf_counter())

    engine = create_async_engine(_async_url(place.url))
    waits = []
    await broker.start()
    for number in range(count):
        await asyncio.sleep(0.02 + random.random() * 0.03)
        async with engine.connect() as connection:
            await broker.publish(number, "pick-up", session=connection)
            committed = time.perf_counter()
            await connection.commit()
            waits.append((await started.get() - committed) * 1000)
    await broker.stop()
    await engine.dispose()
    p95 = percentile(waits, 0.95)
    bounded = place.name == "postgres"
    return [
        plain("idle pick-up p50", percentile(waits, 0.5), "ms", 1),
        at_most("idle pick-up p95", p95, PICK_UP_MS, "ms")
        if bounded
        else plain("idle pick-up p95", p95, "ms", 1),
    ]


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
        at_most("timer lateness p99", percentile(late, 0.99), LATENESS_MS, "ms"),
        Figure("earliest", f"{min(late):.2f} ms", "never early", min(late) >= 0),
    ]


def _async_url(url: str) -> str:
    return url.replace("sqlite://", "sqlite+aiosqlite://").replace("postgresql://", "postgresql+asyncpg://")
