"""Draining a backlog through a handler that takes a hundred messages at once, against a hand-written loop."""

from __future__ import annotations

import asyncio
import time

from benchmarks.payload import BODY, Order
from benchmarks.places import Place
from benchmarks.report import Figure, at_least, plain
from nightmail import OutboxBroker

ROUNDS = 3


async def batches(place: Place, count: int) -> list[Figure]:
    """The same number of messages for each, in turn; the best round of each."""
    rate = raw = 0.0
    for _ in range(ROUNDS):
        rate = max(rate, await _drained(place, count))
        raw = max(raw, await place.raw_rate(count))
    share, bound = 100 * rate / raw, place.bounds.batch_share
    what = "share of the loop by hand"
    return [
        plain(f"batches of 100 through {place.name}", rate, "msg/s"),
        plain("a loop by hand, no FastStream", raw, "msg/s"),
        plain(what, share, "%", digits=1) if bound is None else at_least(what, share, bound, "%"),
    ]


async def _drained(place: Place, count: int) -> float:
    broker = OutboxBroker(place.url, create_tables=True, logger=None)
    handled, all_handled = 0, asyncio.Event()

    @broker.subscriber("orders", batch=True, max_batch=100)
    async def take(orders: list[Order]) -> None:
        nonlocal handled
        handled += len(orders)
        if handled == count:
            all_handled.set()

    async with broker:
        for start in range(0, count, 1000):
            await broker.publish_batch(*[BODY] * min(1000, count - start), queue="orders")
    await broker.connect()
    begun = time.perf_counter()
    await broker.start()
    await all_handled.wait()
    await broker.stop()  # The last settlements count too.
    return count / (time.perf_counter() - begun)
