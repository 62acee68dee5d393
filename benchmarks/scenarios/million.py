"""Draining a million messages: whether memory grows, and whether the last ones are as fast as the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from benchmarks.adapters.tally import MARK_EVERY
from benchmarks.child import Child, ChildFailed
from benchmarks.lab import Bench, Lab
from benchmarks.results import Course, Table
from benchmarks.scenarios.draining import QUEUE, consuming
from benchmarks.systems import OURS

FIRST, LAST = "the first 100,000", "100,000 after the first million"
SLICES = 10
MOST, GROWTH = "memory, most", "memory, growth after the first 100,000"
PROCESSOR = "processor time for each message"
LOOK_SECONDS, QUICK_LOOK_SECONDS = 0.5, 0.02
PARTS = 11


async def million(lab: Lab, store: str) -> None:
    """1.1 million through a plain engine handler, published by another process.

    On MariaDB, which takes minutes to publish them, the server copies what was published.
    """
    part = lab.choose(100_000, 4_000)
    count = PARTS * part
    rates = Table("million", "throughput", store, "messages/s")
    most = Table("million", MOST, store, "MB", less_is_better=True)
    growth = Table("million", GROWTH, store, "MB", less_is_better=True)
    processor = Table("million", PROCESSOR, store, "µs", less_is_better=True)
    rates.note = "one drain; the rounds are tenths of the 100,000"
    for table in (rates, most, growth, processor):
        if part != 100_000:
            table.note = f"{count:,} messages instead of 1,100,000"
        lab.results.tables.append(table)
    async with lab.benches([OURS], store, processes=2) as pairs:
        for pair in pairs:
            lab.say(f"publishing {count:,}")
            consumer, publisher = pair.children
            if store == "mariadb":
                await publisher.ask("fill", queue=QUEUE, count=part, within=1200)
                await pair.server.multiply(pair.url, "nightmail_messages", PARTS)
            else:
                await publisher.ask("fill", queue=QUEUE, count=count, within=1200)
            await pair.server.tidy(pair.url)
            lab.say(f"draining {count:,}")
            marks, looks = await _drained(pair, consumer, count, lab.choose(LOOK_SECONDS, QUICK_LOOK_SECONDS))
            seconds = [mark - marks[0] for mark in marks]
            index = part // MARK_EVERY
            rates.row(FIRST).values.extend(sliced(seconds[:index]))
            rates.row(LAST).values.extend(sliced(seconds[-index:]))
            whose = "its process" if pair.server.processor_seconds() is None else "its process and the server"
            # By the clock, a slow minute of the machine looks like a store that slows down.
            for name, since, until in ((FIRST, 0, index - 1), (LAST, -1 - index, -1)):
                used = _used(looks, marks[until]) - _used(looks, marks[since])
                handled = (until - since) * MARK_EVERY
                processor.row(f"{name}: {whose}").values.append(used / handled * 1e6)
            begun, memory = looks[0].at, [look.megabytes for look in looks]
            later = [look.megabytes for look in looks if look.at >= marks[index - 1]] or memory[-1:]
            most.row(pair.label).values.append(max(memory))
            growth.row(pair.label).values.append(max(later) - later[0])
            lab.results.courses.append(
                Course(
                    "million",
                    "memory",
                    store,
                    "MB",
                    [look.at - begun for look in looks],
                    {"resident": memory},
                )
            )
            lab.results.courses.append(_throughput(store, seconds))


class _Look(NamedTuple):
    """What one look at the processes shows."""

    at: float
    megabytes: float
    processor_seconds: float
    """Of the consumer and the server together, so far."""


async def _drained(
    bench: Bench, consumer: Child, count: int, every: float
) -> tuple[list[float], list[_Look]]:
    looks: list[_Look] = []

    def look() -> None:
        server = bench.server.processor_seconds() or 0.0
        looks.append(_Look(time.time(), consumer.memory_mb(), consumer.processor_seconds() + server))

    async def look_on() -> None:
        while True:
            look()
            await asyncio.sleep(every)

    async with consuming([consumer], {QUEUE: "plain"}):
        looking = asyncio.create_task(look_on())
        try:
            waited = await consumer.wait(QUEUE, count, patience=900)
            # Or what the last messages took would be in no look, and they would seem to be cheaper than the first.
            look()
        finally:
            looking.cancel()
        marks = (await consumer.ask("report", queue=QUEUE))["marks"]
    if waited["count"] < count:
        raise ChildFailed(f"handled {waited['count']} of {count}")
    return marks, looks


def sliced(seconds: Sequence[float]) -> list[float]:
    """The messages a second of each tenth of a drain, from the moments at which each thousand was handled.

    A moment in which the machine did something else is in one of them, and not in their median.
    """
    step = max((len(seconds) - 1) // SLICES, 1)
    points = seconds[::step][: SLICES + 1]
    return [step * MARK_EVERY / (after - before) for before, after in pairwise(points)]


def _used(looks: Sequence[_Look], moment: float) -> float:
    """The processor time used until then, from the looks around it."""
    for before, after in pairwise(looks):
        if moment <= after.at:
            share = (moment - before.at) / (after.at - before.at)
            return before.processor_seconds + share * (after.processor_seconds - before.processor_seconds)
    return looks[-1].processor_seconds


def _throughput(store: str, seconds: list[float]) -> Course:
    """A point for each fiftieth of the way."""
    step = max(1, len(seconds) // 50)
    points = seconds[::step]
    rates = [step * MARK_EVERY / (after - before) for before, after in pairwise(points)]
    return Course("million", "throughput", store, "messages/s", points[1:], {"nightmail": rates})
