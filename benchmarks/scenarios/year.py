"""A year of virtual time in a test: a timer that re-arms itself every day."""

from __future__ import annotations

import time
from datetime import timedelta

from benchmarks.lab import Lab
from benchmarks.results import Table
from nightmail import OutboxBroker
from nightmail.testing import TestOutboxBroker

DAY = timedelta(days=1)
CASE = "a year of a daily timer, in a test"


async def year(lab: Lab, store: str) -> None:
    """Seconds of real time."""
    days = lab.choose(365, 90, 5)
    table = Table("year", CASE, store, "s", less_is_better=True)
    if days != 365:
        table.note = f"{days} days, times 365/{days}"
    lab.results.tables.append(table)
    for _ in range(lab.choose(5, 2)):
        table.row("nightmail").values.append(await _seconds(days) * 365 / days)


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
