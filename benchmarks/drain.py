"""Draining a backlog of ready messages through a typed FastStream handler, logging off, default settings."""

from __future__ import annotations

import asyncio
import time

from benchmarks.dispatch import faststream_rate
from benchmarks.payload import BODY, Order
from benchmarks.places import Place
from benchmarks.report import Figure, at_least, at_most, plain
from nightmail import OutboxBroker

ROUNDS = 3


async def drain(place: Place, count: int) -> list[Figure]:
    """The same number of messages for each, in turn; the best round of each: a shared machine has slow seconds."""
    alone, rate, raw, trips = 0.0, 0.0, 0.0, None
    for _ in range(ROUNDS):
        alone = max(alone, await faststream_rate(count))
        this_rate, trips = await _drained(place, count)
        rate = max(rate, this_rate)
        raw = max(raw, await place.raw_rate(count))
    figures = [
        plain("FastStream alone, from memory", alone, "msg/s"),
        plain(f"drained through {place.name}", rate, "msg/s"),
        plain("a loop by hand, no FastStream", raw, "msg/s"),
        at_least("share of FastStream alone", 100 * rate / alone, place.bounds.share, "%"),
    ]
    if place.bounds.times is not None:
        figures.append(
            at_most("cost, FastStream alone being 1", alone / rate, place.bounds.times, "", digits=2)
        )
    if trips is not None and place.bounds.round_trips is not None:
        figures.append(at_most("round trips a message", trips, place.bounds.round_trips, "", digits=4))
    return figures


async def _drained(place: Place, count: int) -> tuple[float, float | None]:
    broker = OutboxBroker(place.url, create_tables=True, logger=None)
    handled, all_handled = 0, asyncio.Event()

    @broker.subscriber("orders")
    async def take(order: Order) -> None:
        nonlocal handled
        handled += 1
        if handled == count:
            all_handled.set()

    async with broker:
        for start in range(0, count, 1000):
            await broker.publish_batch(*[BODY] * min(1000, count - start), queue="orders")
    before = await place.round_trips()
    await broker.connect()
    begun = time.perf_counter()
    await broker.start()
    await all_handled.wait()
    await broker.stop()  # The last settlements count too.
    seconds = time.perf_counter() - begun
    after = await place.round_trips()
    trips = None if before is None or after is None else (after - before) / count
    return count / seconds, trips
