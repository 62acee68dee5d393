"""One drain of a backlog, measured alike for everyone. Shared by several scenarios."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from benchmarks.child import Child, ChildFailed
from benchmarks.lab import Bench, Lab

QUEUE = "orders"
FAST = ("plain", "batch")
"""Kinds of handlers that take so little that the first small claims of a worker weigh: their backlogs are larger."""
FEW = 200
MANY = 1500
"""More than a batch, or there is nothing to measure."""
MANY_MORE = 10_000
"""What fits into the first claims says little about how fast the rest is."""
MOST, MOST_FAST = 50_000, 150_000
"""A larger backlog takes too long to publish."""
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.02


class Meter:
    """Processor time for each message of a drain, in µs: of the system's own processes, and of the server.

    Between one of the first messages and the last: starting and stopping are left out.
    """

    def __init__(self) -> None:
        self.own: float | None = None
        """`None` if the drain was over too soon to say."""
        self.server: float | None = None
        self._handled = 0
        self._before: tuple[float, float | None] = (0.0, None)

    async def begin(self, bench: Bench) -> None:
        """Wait until the first messages are handled, and count from there."""
        self._handled = sum(part["count"] for part in await _handled(bench, 1))
        self._before = _processor_seconds(bench)

    def end(self, bench: Bench, count: int) -> None:
        """All are handled, which are so many."""
        own, server = _processor_seconds(bench)
        messages = count - self._handled
        if messages > 0:
            self.own = (own - self._before[0]) / messages * 1e6
            if server is not None and self._before[1] is not None:
                self.server = (server - self._before[1]) / messages * 1e6


def _processor_seconds(bench: Bench) -> tuple[float, float | None]:
    # Its own first: to ask the server takes some milliseconds.
    return sum(child.processor_seconds() for child in bench.children), bench.server.processor_seconds()


async def drained(lab: Lab, bench: Bench, kind: str, meter: Meter | None = None) -> float:
    """Messages a second, from the first handler to the last.

    The backlog is as large as the system takes in a second and a half, in two of a fast handler, which a smaller drain
    has found out before: a fixed number would be an instant for one system and minutes for another. What happens until
    the first handler runs is left out: connecting takes some systems as long as a thousand messages.
    """
    if kind not in bench.sizes:
        fast = kind in FAST
        few = lab.choose(MANY_MORE, MANY) if fast else lab.choose(FEW, 100, 50)
        seconds = lab.choose(2.0 if fast else 1.5, 0.5, 0.1)
        most = lab.choose(MOST_FAST if fast else MOST, 10_000, MANY)
        rate = await drain(bench, kind, few)
        bench.sizes[kind] = int(min(max(few, rate * seconds), most))
    return await drain(bench, kind, bench.sizes[kind], meter)


async def drain(bench: Bench, kind: str, count: int, meter: Meter | None = None) -> float:
    """The same with so many messages, by all processes of the system together."""
    await fill(bench, count)
    return await work_off(bench, kind, count, meter)


async def fill(bench: Bench, count: int) -> None:
    """Publish a backlog."""
    await bench.child.ask("fill", queue=QUEUE, count=count, within=600)
    await bench.server.tidy(bench.url)


async def work_off(bench: Bench, kind: str, count: int, meter: Meter | None = None) -> float:
    """Drain a backlog that is there; messages a second."""
    async with consuming(bench.children, {QUEUE: kind}):
        if meter is not None:
            await meter.begin(bench)
        seen = await _handled(bench, count)
        if meter is not None:
            meter.end(bench, count)
    first = min(seen, key=lambda part: float(part["first"]))
    seconds = max(part["last"] for part in seen) - first["first"]
    if seconds <= 0:
        raise ChildFailed(f"{bench.label}: {count} messages in one batch are no rate")
    return float((count - first["with_first"]) / seconds)


@asynccontextmanager
async def consuming(children: Sequence[Child], handlers: Mapping[str, str]) -> AsyncIterator[None]:
    """These consume for as long as the block lasts: one that fails is told to stop too, or it would take part in
    what is measured next.
    """
    try:
        await _all(child.ask("start", handlers=dict(handlers)) for child in children)
        yield
    except Exception:
        with suppress(ChildFailed):
            await _all(child.ask("stop") for child in children)
        raise
    await _all(child.ask("stop") for child in children)


async def _all(questions: Iterable[Awaitable[object]]) -> None:
    """Wait until each is answered, and only then fail if one has failed: a child is asked one thing at a time."""
    for answer in await asyncio.gather(*questions, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


async def _handled(bench: Bench, count: int) -> list[dict[str, Any]]:
    """What each process has seen, once that is so many. One that has seen nothing is left out."""
    if len(bench.children) == 1:
        seen = [await bench.child.wait(QUEUE, count, patience=PATIENCE_SECONDS)]
    else:
        # None of them knows what the others did.
        end = time.monotonic() + PATIENCE_SECONDS
        seen = []
        while sum(part["count"] for part in seen) < count and time.monotonic() < end:
            await asyncio.sleep(LOOK_SECONDS)
            seen = [await child.wait(QUEUE, None, patience=0) for child in bench.children]
    handled = sum(part["count"] for part in seen)
    if handled < count:
        raise ChildFailed(f"{bench.label} handled {handled} of {count}")
    return [part for part in seen if part["count"]]
