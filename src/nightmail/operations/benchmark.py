"""How fast this store is from here: messages published, handled and gone, in a queue of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, perf_counter
from typing import Final
from uuid import uuid4

from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.message import Delivery, Message
from nightmail.store import FullStore

QUEUE_PREFIX: Final = "nightmail-bench-"
BATCH: Final = 100
_LEASE: Final = timedelta(seconds=5)
"""Short: what an interrupted benchmark had leased can be removed once its lease has ended."""
_SINGLE: Final = 20
"""How many messages measure the time of one publish, and of one message from publish to handler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """What was measured. Times are medians."""

    messages: int
    body_bytes: int
    publish_seconds: float
    """One publish, alone."""
    published_per_second: float
    """In batches of a hundred."""
    handled_per_second: float
    """By one worker, with a handler that does nothing."""
    delivery_seconds: float
    """From the publish of a message to its handler, while nothing else happens."""


async def bench(
    store: FullStore,
    *,
    messages: int,
    body_bytes: int,
    workers: int = 10,
    progress: Callable[[int], None] = lambda done: None,
) -> BenchResult:
    """Measure this store. However it ends, what it published is removed; `progress` hears of 2 × `messages` steps."""
    queue = f"{QUEUE_PREFIX}{uuid4().hex[:12]}"
    message = Message(queue=queue, body=b"x" * body_bytes)
    try:
        published = await _publish_batches(store, message, messages, progress)
        handled = await _handle(store, queue, messages, workers, lambda done: progress(messages + done))
        alone, delivered = await _one_by_one(store, message)
    finally:
        # Shielded: an interrupted benchmark must not leave its messages to be found by an alert.
        await asyncio.shield(_remove(store, queue))
    return BenchResult(
        messages=messages,
        body_bytes=body_bytes,
        publish_seconds=alone,
        published_per_second=messages / published,
        handled_per_second=messages / handled,
        delivery_seconds=delivered,
    )


async def _publish_batches(
    store: FullStore, message: Message, count: int, progress: Callable[[int], None]
) -> float:
    began = perf_counter()
    for first in range(0, count, BATCH):
        await store.publish_batch([message] * min(BATCH, count - first))
        progress(min(first + BATCH, count))
    return perf_counter() - began


async def _handle(
    store: FullStore, queue: str, count: int, workers: int, progress: Callable[[int], None]
) -> float:
    done = 0
    last = began = perf_counter()

    async def handle(_: Delivery) -> None:
        nonlocal done, last
        done += 1
        last = perf_counter()
        if done % BATCH == 0 or done == count:
            progress(done)

    await Worker(
        store, handle, queues=[queue], settings=WorkerSettings(max_workers=workers, lease=_LEASE)
    ).run_until_idle()
    return max(last - began, 1e-9)


async def _one_by_one(store: FullStore, message: Message) -> tuple[float, float]:
    """Seconds for a publish, and from a publish to its handler."""
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def handle(_: Delivery) -> None:
        arrived.put_nowait(perf_counter())

    worker = Worker(store, handle, queues=[message.queue], settings=WorkerSettings(lease=_LEASE))
    running = asyncio.create_task(worker.run())
    publishing, delivering = [], []
    try:
        for _ in range(_SINGLE):
            began = perf_counter()
            await store.publish(message)
            publishing.append(perf_counter() - began)
            delivering.append(await asyncio.wait_for(arrived.get(), timeout=30) - began)
    finally:
        await worker.stop()
        await running
    return sorted(publishing)[_SINGLE // 2], sorted(delivering)[_SINGLE // 2]


async def _remove(store: FullStore, queue: str) -> None:
    """Remove what waits, and what was leased as soon as it waits again."""
    ends_at = monotonic() + 2 * _LEASE.total_seconds()
    while queue in await store.stats():
        await store.cancel_all(queue)
        if monotonic() > ends_at:
            return
        await asyncio.sleep(0.1)
