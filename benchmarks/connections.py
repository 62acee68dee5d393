"""How many connections one process keeps, however many subscribers it has."""

from __future__ import annotations

import asyncio

from benchmarks.places import Place
from benchmarks.report import Figure, at_most
from nightmail import OutboxBroker

MOST = 5


async def connections(place: Place) -> list[Figure]:
    """With 1 and with 10 subscribers, each having handled something."""
    return [await _with(place, subscribers) for subscribers in (1, 10)]


async def _with(place: Place, subscribers: int) -> Figure:
    broker = OutboxBroker(place.url, create_tables=True, logger=None)
    handled: set[str] = set()
    all_handled = asyncio.Event()

    async def take(name: str) -> None:
        handled.add(name)
        if len(handled) == subscribers:
            all_handled.set()

    queues = [f"connections-{subscribers}-{number}" for number in range(subscribers)]
    for queue in queues:
        broker.subscriber(queue)(take)
    await broker.start()
    for queue in queues:
        await broker.publish(queue, queue)
    await all_handled.wait()
    count = await place.connections() or 0
    await broker.stop()
    return at_most(f"connections with {subscribers} subscribers", count, MOST, "", digits=0)
