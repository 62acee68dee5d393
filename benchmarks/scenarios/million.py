"""Draining a million messages: whether memory grows, and whether the last ones are as fast as the first."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from benchmarks.adapters.tally import MARK_EVERY
from benchmarks.child import Child, ChildFailed
from benchmarks.lab import Lab
from benchmarks.results import Course, Table
from benchmarks.scenarios.draining import QUEUE, consuming
from benchmarks.systems import OURS

FIRST, LAST = "the first 100,000", "100,000 after the first million"
MOST, GROWTH = "memory, most", "memory, growth after the first 100,000"
LOOK_SECONDS = 0.5
STORES = ("postgres", "redis", "sqlite")
"""MariaDB would take as long as the three together."""


async def million(lab: Lab, store: str) -> None:
    """1.1 million through a plain engine handler, published by another process."""
    part = lab.choose(100_000, 4_000)
    count = 11 * part
    rates = Table("million", "throughput", store, "messages/s")
    most = Table("million", MOST, store, "MB", less_is_better=True)
    growth = Table("million", GROWTH, store, "MB", less_is_better=True)
    for table in (rates, most, growth):
        if part != 100_000:
            table.note = f"{count:,} messages instead of 1,100,000"
        lab.results.tables.append(table)
    async with lab.benches([OURS], store, processes=2) as pairs:
        for pair in pairs:
            lab.say(f"publishing {count:,}")
            consumer, publisher = pair.children
            await publisher.ask("fill", queue=QUEUE, count=count, within=1200)
            await pair.server.tidy(pair.url)
            lab.say(f"draining {count:,}")
            marks, memory = await _drained(consumer, count)
            seconds = [mark - marks[0] for mark in marks]
            index = part // MARK_EVERY
            rates.row(FIRST).values.append((part - MARK_EVERY) / (seconds[index - 1] - seconds[0]))
            rates.row(LAST).values.append(part / (seconds[-1] - seconds[-1 - index]))
            begun = memory[0][0]
            later = [megabytes for at, megabytes in memory if at >= marks[index - 1]] or [memory[-1][1]]
            most.row(pair.label).values.append(max(megabytes for _, megabytes in memory))
            growth.row(pair.label).values.append(max(later) - later[0])
            lab.results.courses.append(
                Course(
                    "million",
                    "memory",
                    store,
                    "MB",
                    [at - begun for at, _ in memory],
                    {"resident": [m for _, m in memory]},
                )
            )
            lab.results.courses.append(_throughput(store, seconds))


async def _drained(consumer: Child, count: int) -> tuple[list[float], list[tuple[float, float]]]:
    memory: list[tuple[float, float]] = []

    async def look() -> None:
        while True:
            memory.append((time.time(), consumer.memory_mb()))
            await asyncio.sleep(LOOK_SECONDS)

    async with consuming([consumer], {QUEUE: "plain"}):
        looking = asyncio.create_task(look())
        try:
            waited = await consumer.wait(QUEUE, count, patience=900)
        finally:
            looking.cancel()
        marks = (await consumer.ask("report", queue=QUEUE))["marks"]
    if waited["count"] < count:
        raise ChildFailed(f"handled {waited['count']} of {count}")
    return marks, memory


def _throughput(store: str, seconds: list[float]) -> Course:
    """A point for each fiftieth of the way."""
    step = max(1, len(seconds) // 50)
    points = seconds[::step]
    rates = [step * MARK_EVERY / (after - before) for before, after in pairwise(points)]
    return Course("million", "throughput", store, "messages/s", points[1:], {"nightmail": rates})
