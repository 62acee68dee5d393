"""How many connections a broker opens that does everything: it takes, settles, renews, sets timers, and looks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from nightmail import OutboxBroker
from tests.counters.baseline import at_most
from tests.golden.record import Record
from tests.stores.support import until

PATIENCE: Final = 30.0
LEASE_SECONDS: Final = 5
"""The keeper's connection is opened with the first renewal, after a third of it."""


async def assert_few_connections(store: str, url: str, record: Record, subscribers: int) -> None:
    """As many as are written down, and as the store declares, however many subscribers there are."""
    declared, found = await _connections(url, record, subscribers)

    at_most(f"a broker on {store}, 1 or 10 subscribers", "connections", found)
    assert found == declared, f"connections {declared} -> {found}: it declares more than it opens"
    assert _open(record) == 0


async def _connections(url: str, record: Record, subscribers: int) -> tuple[int, int]:
    """How many the store declares, and how many were open."""
    broker = OutboxBroker(url, create_tables=True, logger=None, lease_ttl_seconds=LEASE_SECONDS)
    all_run, go_on = asyncio.Barrier(subscribers + 1), asyncio.Event()

    async def take(body: str) -> None:
        if body == "stay":
            await all_run.wait()
            await go_on.wait()

    queues = [f"queue-{number}" for number in range(subscribers)]
    for queue in queues:
        broker.subscriber(queue)(take)
    declared = int(broker.store.capabilities.connections)

    async def use() -> None:
        for queue in queues:
            await broker.publish_batch("go", "stay", queue=queue)
        await broker.publish("later", queues[0], timer_id="later", activate_in=3600)
        await asyncio.gather(*(broker.store.stats() for _ in range(5)))
        await all_run.wait()

    async with broker:
        await broker.start()
        async with asyncio.timeout(PATIENCE):
            await use()
        with suppress(TimeoutError):
            await until(lambda: _open(record) >= declared, within=PATIENCE)
        # One that is too many may be opened last: so everything is done once more.
        async with asyncio.timeout(PATIENCE):
            await use()
        found = _open(record)
        go_on.set()
    with suppress(TimeoutError):
        await until(lambda: not _open(record), within=PATIENCE)
    return declared, found


def _open(record: Record) -> int:
    with record.lock:
        return record.open.total()
