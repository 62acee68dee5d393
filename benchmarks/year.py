"""A year of virtual time in a test: a timer that re-arms itself every day."""

from __future__ import annotations

import time
from datetime import timedelta

from benchmarks.report import Figure, at_most
from nightmail import OutboxBroker
from nightmail.testing import TestOutboxBroker

DAY = timedelta(days=1)
SECONDS = 1.0
ROUNDS = 3


async def year(days: int) -> list[Figure]:
    """Seconds of real time: the best of several rounds."""
    best = min([await _seconds(days) for _ in range(ROUNDS)])
    return [at_most(f"{days} days of a daily timer", best, SECONDS, "s", digits=2)]


async def _seconds(days: int) -> float:
    broker, runs = OutboxBroker("memory://", logger=None), 0
    tb = TestOutboxBroker(broker)

    @broker.subscriber("daily")
    async def daily(body: str) -> None:
        nonlocal runs
        runs += 1
        await broker.publish(body, "daily", timer_id="report", activate_in=DAY)

    async with tb as br:
        await br.publish("report", "daily", timer_id="report", activate_in=DAY)
        begun = time.perf_counter()
        await tb.advance(days * DAY)
        seconds = time.perf_counter() - begun
    if runs != days:
        raise RuntimeError(f"{runs} runs in {days} days")
    return seconds
