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
from benchmarks.systems import OURS, OUTBOX_BEST, PGQUEUER_BEST, System, on

FIRST, LAST = "the first 100,000", "100,000 after the first million"
SLICES = 10
MOST, GROWTH = "memory, most", "memory, growth after the first 100,000"
PROCESSOR = "processor time for each message"
LOOK_SECONDS, QUICK_LOOK_SECONDS = 0.5, 0.02
PARTS = 11


async def million(lab: Lab, store: str) -> None:
    """1.1 million through a plain engine handler, published by another process; then the same of peers.

    On MariaDB, which takes minutes to publish them, the server copies what was published. Peers that take minutes to
    drain so many are left out.
    """
    part = lab.choose(100_000, 4_000)
    rates = Table("million", "throughput", store, "messages/s")
    most = Table("million", MOST, store, "MB", less_is_better=True)
    growth = Table("million", GROWTH, store, "MB", less_is_better=True)
    processor = Table("million", PROCESSOR, store, "µs", less_is_better=True)
    rates.note = "one drain; the rounds are tenths of the 100,000"
    for table in (rates, most, growth, processor):
        if part != 100_000:
            table.note = f"{PARTS * part:,} messages instead of 1,100,000"
        lab.results.tables.append(table)
    for system in on(store, OURS, *lab.choose([OUTBOX_BEST, PGQUEUER_BEST], [])):
        # One at a time: what another waits with would count as the server's memory and processor time.
        async with lab.benches([system], store, processes=2) as pairs:
            for pair in pairs:
                try:
                    found = await _measured(lab, pair, part)
                except ChildFailed as error:
                    if system is OURS:
                        raise
                    lab.failed(f"million on {store}, {pair.label}", error)
                    continue
                for case in (FIRST, LAST):
                    rates.row(row(system, case)).values.extend(found.rates[case])
                    processor.row(f"{row(system, case)}: {found.whose}").values.append(found.processor[case])
                most.row(pair.label).values.append(max(found.memory.values()))
                growth.row(pair.label).values.append(found.growth)
                lab.results.courses.extend(_courses(system, store, found))


def row(system: System, case: str) -> str:
    """The name of what is said of this system. Ours goes without its name."""
    return case if system is OURS else f"{system.label}: {case}"


class _Found(NamedTuple):
    """What came of a drain."""

    rates: dict[str, list[float]]
    processor: dict[str, float]
    whose: str
    """Of which processes the processor time is."""
    memory: dict[float, float]
    """How many megabytes, by the second of the drain."""
    growth: float
    """How many more after the first 100,000."""
    seconds: list[float]
    """When each thousand was handled."""


async def _measured(lab: Lab, pair: Bench, part: int) -> _Found:
    count = PARTS * part
    consumer, publisher = pair.children
    lab.say(f"{pair.label}: publishing {count:,}")
    if pair.server.name == "mariadb":
        await publisher.ask("fill", queue=QUEUE, count=part, within=1200)
        await pair.server.multiply(pair.url, "nightmail_messages", PARTS)
    else:
        await publisher.ask("fill", queue=QUEUE, count=count, within=1200)
    await pair.server.tidy(pair.url)
    lab.say(f"{pair.label}: draining {count:,}")
    marks, looks = await _drained(pair, consumer, count, lab.choose(LOOK_SECONDS, QUICK_LOOK_SECONDS))
    seconds = [mark - marks[0] for mark in marks]
    index = part // MARK_EVERY
    # By the clock, a slow minute of the machine looks like a store that slows down.
    processor = {}
    for case, since, until in ((FIRST, 0, index - 1), (LAST, -1 - index, -1)):
        used = _used(looks, marks[until]) - _used(looks, marks[since])
        processor[case] = used / ((until - since) * MARK_EVERY) * 1e6
    later = [look.megabytes for look in looks if look.at >= marks[index - 1]] or [looks[-1].megabytes]
    return _Found(
        rates={FIRST: sliced(seconds[:index]), LAST: sliced(seconds[-index:])},
        processor=processor,
        whose="its process" if pair.server.processor_seconds() is None else "its process and the server",
        memory={look.at - looks[0].at: look.megabytes for look in looks},
        growth=max(later) - later[0],
        seconds=seconds,
    )


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

    async with consuming([consumer], {QUEUE: "typed" if bench.system is OUTBOX_BEST else "plain"}):
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


def _courses(system: System, store: str, found: _Found) -> list[Course]:
    """Memory, and the throughput in a point for each fiftieth of the way."""
    step = max(1, len(found.seconds) // 50)
    points = found.seconds[::step]
    rates = [step * MARK_EVERY / (after - before) for before, after in pairwise(points)]
    return [
        Course(
            "million",
            row(system, "memory"),
            store,
            "MB",
            list(found.memory),
            {"resident": list(found.memory.values())},
        ),
        Course("million", row(system, "throughput"), store, "messages/s", points[1:], {system.label: rates}),
    ]
