"""Throughput of other ordering keys while one is blocked, with a great many messages waiting behind it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final
from uuid import uuid4

from benchmarks.adapters.payload import ENCODED
from benchmarks.lab import Lab
from benchmarks.results import Table
from nightmail.engine.worker import Worker
from nightmail.message import Delivery, Message
from nightmail.outcome import Retry
from nightmail.store import FullStore, Settlement
from nightmail.stores import open_store

QUEUE: Final = "keys"
LEASE: Final = timedelta(minutes=1)
STUCK: Final = Message(queue=QUEUE, body=ENCODED, ordering_key="stuck")
STUCK_ELSEWHERE: Final = Message(queue="elsewhere", body=ENCODED, ordering_key="stuck")

CASE: Final = "other keys"
EMPTY, ELSEWHERE, BEHIND = "an empty store", "as many in another queue", "as many behind one key"


async def keys(lab: Lab, store: str) -> None:
    """Messages with keys of their own through a worker, with as many others in the store.

    Those wait in a queue that no worker serves, or behind one key of the queue that is drained. What a larger store
    costs by itself is in both, so the difference is what the blocked ones cost. An empty store is faster than either.
    """
    count = lab.choose(5_000, 1000, 50)
    table = Table("keys", CASE, store, "messages/s", note=f"{count:,} messages")
    lab.results.tables.append(table)
    server = await lab.server(store)
    with server.database() as url:
        opened = open_store(url)
        await opened.open()
        await opened.migrate()
        try:
            for _ in range(lab.choose(3, 1)):
                await _round(opened, count, table)
        finally:
            await opened.close()


async def _round(store: FullStore, count: int, table: Table) -> None:
    table.row(EMPTY).values.append(await _drained(store, count))
    await _publish(store, STUCK_ELSEWHERE, count)
    table.row(ELSEWHERE).values.append(await _drained(store, count))
    await store.cancel_all(STUCK_ELSEWHERE.queue)
    await _hold_up(store, count)
    table.row(BEHIND).values.append(await _drained(store, count))
    await store.cancel_all(QUEUE)


async def _hold_up(store: FullStore, count: int) -> None:
    """Let one key wait for a day, with so many behind it."""
    await store.publish(STUCK)
    (head,) = (await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries
    await store.settle([Settlement(head, Retry(timedelta(days=1)))])
    await _publish(store, STUCK, count)


async def _publish(store: FullStore, message: Message, count: int) -> None:
    for start in range(0, count, 1000):
        await store.publish_batch([message] * min(1000, count - start))


async def _drained(store: FullStore, count: int) -> float:
    handled = 0

    async def handle(delivery: Delivery) -> None:
        nonlocal handled
        handled += 1

    for start in range(0, count, 1000):
        await store.publish_batch(
            [
                Message(queue=QUEUE, body=ENCODED, ordering_key=f"key {number}")
                for number in range(start, min(start + 1000, count))
            ]
        )
    begun = time.perf_counter()
    await Worker(store, handle, queues=[QUEUE]).run_until_idle()
    seconds = time.perf_counter() - begun
    if handled != count:
        raise RuntimeError(f"handled {handled} of {count}")
    return count / seconds
