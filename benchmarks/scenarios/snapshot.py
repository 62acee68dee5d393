"""A stream of 800 messages a second while another transaction holds a snapshot, so that nothing dead is removed."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.child import ChildFailed
from benchmarks.lab import Bench, Lab
from benchmarks.results import Course, Table
from benchmarks.scenarios.draining import QUEUE, consuming
from benchmarks.systems import OURS, OUTBOX_BEST, System, on

RATE, STEP_SECONDS = 800, 0.01
NORMAL_SECONDS = 0.02
SENT, DELIVERED, P99, BACK = "sent", "delivered of sent", "p99 while it is held", "seconds until normal again"
BEHIND = "publisher behind, most"


async def snapshot(lab: Lab, store: str) -> None:
    """Two minutes under the snapshot, with some time before it to know what is normal, and after it.

    One system after the other: what one leaves behind that cannot be removed would be in the figures of the next.
    """
    before, held, after = lab.choose((15.0, 120.0, 15.0), (3.0, 3.0, 1.5))
    rate = Table("snapshot", SENT, store, "messages/s")
    behind = Table("snapshot", BEHIND, store, "ms", less_is_better=True)
    delivered = Table("snapshot", DELIVERED, store, "%")
    p99 = Table("snapshot", P99, store, "ms", less_is_better=True)
    back = Table("snapshot", BACK, store, "s", less_is_better=True)
    for table in (rate, behind, delivered, p99, back):
        if held != 120:
            table.note = f"held for {held:.0f} s instead of 120"
        lab.results.tables.append(table)
    for system in on(store, OURS, *lab.choose([OUTBOX_BEST], [])):
        async with lab.benches([system], store, processes=2) as pairs:
            for pair in pairs:
                lab.say(f"{pair.label}: {RATE} messages a second for {before + held + after:.0f} s")
                try:
                    sent, report, span = await _streamed(pair, before, held, after)
                except ChildFailed as error:
                    if system is OURS:
                        raise
                    lab.failed(f"snapshot on {store}, {pair.label}", error)
                    continue
                seconds = report["seconds"]
                rate.row(pair.label).values.append(sent["count"] / sent["seconds"])
                behind.row(pair.label).values.append(1000 * sent["behind"])
                delivered.row(pair.label).values.append(100 * report["count"] / sent["count"])
                p99.row(pair.label).values.append(1000 * report["late"]["p99"])
                back.row(pair.label).values.append(_until_normal(seconds, span))
                lab.results.courses.extend(_courses(system, store, seconds, span))


def _courses(
    system: System, store: str, seconds: Sequence[dict[str, float]], span: tuple[float, float]
) -> list[Course]:
    """How late messages were, and how many were handled, in each second."""
    whose = "" if system is OURS else f", {system.label}"
    begun = seconds[0]["at"]
    held = {"snapshot held": (span[0] - begun, span[1] - begun)}
    # The stream began and ended within a second.
    whole = seconds[1:-1]
    return [
        Course(
            "snapshot",
            f"lateness{whose}",
            store,
            "ms",
            [late["at"] - begun for late in seconds],
            {case: [late[case] * 1000 for late in seconds] for case in ("p50", "p99")},
            held,
        ),
        Course(
            "snapshot",
            f"throughput{whose}",
            store,
            "messages/s",
            [late["at"] - begun for late in whole],
            {"handled": [late["count"] for late in whole]},
            held,
        ),
    ]


async def _streamed(
    pair: Bench, before: float, held: float, after: float
) -> tuple[dict[str, Any], dict[str, Any], tuple[float, float]]:
    consumer, publisher = pair.children
    seconds = before + held + after
    async with consuming([consumer], {QUEUE: "typed"}):
        stream = asyncio.create_task(
            publisher.ask(
                "pace", queue=QUEUE, rate=RATE, seconds=seconds, step=STEP_SECONDS, within=seconds * 2 + 60
            )
        )
        try:
            await asyncio.sleep(before)
            async with pair.server.held_snapshot(pair.url):
                begun = time.time()
                await asyncio.sleep(held)
            span = begun, time.time()
            sent = await stream
        finally:
            stream.cancel()
            await asyncio.wait([stream])
        await consumer.wait(QUEUE, sent["count"], patience=60)
        report = await consumer.ask("report", queue=QUEUE, since=span[0], until=span[1])
    if not report["count"]:
        raise ChildFailed(f"{pair.label}: nothing came")
    return sent, report, span


def _until_normal(seconds: Sequence[dict[str, float]], span: tuple[float, float]) -> float:
    """How long after the release the last second was that was not normal: its tail over twice the median one before.

    Not the worst one before: one bad second of the machine would make anything normal.
    """
    # The first second has what starting up cost.
    tails = [late["p99"] for late in seconds[1:] if late["at"] < math.floor(span[0])]
    normal = max(NORMAL_SECONDS, 2 * median(tails)) if tails else NORMAL_SECONDS
    worse = [late["at"] for late in seconds if late["at"] > span[1] and late["p99"] > normal]
    return max(worse) + 1 - span[1] if worse else 0.0
