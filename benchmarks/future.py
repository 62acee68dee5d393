"""What a claim costs next to a great many messages that are not due yet."""

from __future__ import annotations

import statistics
import time
from datetime import timedelta
from typing import Final
from uuid import uuid4

from benchmarks.places import Place
from benchmarks.places.raw import ENCODED
from benchmarks.report import Figure, at_most, plain
from nightmail.message import Message
from nightmail.outcome import Done
from nightmail.store import FullStore, Settlement
from nightmail.stores import open_store

QUEUE: Final = "future"
RATIO: Final = 1.3
ROUNDS: Final = 100
AT_ONCE: Final = 100
LEASE: Final = timedelta(minutes=1)
LATER: Final = Message(queue=QUEUE, body=ENCODED, due=timedelta(days=30))
NOW: Final = Message(queue=QUEUE, body=ENCODED)


async def future(place: Place, count: int) -> list[Figure]:
    """The median claim of a hundred messages, alone and with `count` others in the same queue due in thirty days."""
    store = open_store(place.url)
    await store.open()
    await store.migrate()
    await _claims(store)  # Warm-up: what is loaded, planned or connected only once.
    alone = await _claims(store)
    for start in range(0, count, 1000):
        await store.publish_batch([LATER] * min(1000, count - start))
    beside = await _claims(store)
    await store.cancel_all(QUEUE)
    await store.close()
    return [
        plain("a claim of 100, alone", alone * 1000, "ms", 2),
        plain(f"beside {count:,} future messages", beside * 1000, "ms", 2),
        at_most("times the cost alone", beside / alone, RATIO, "", digits=2),
    ]


async def _claims(store: FullStore) -> float:
    """Seconds of the median claim."""
    seconds = []
    for _ in range(ROUNDS):
        await store.publish_batch([NOW] * AT_ONCE)
        begun = time.perf_counter()
        claimed = await store.claim([QUEUE], limit=AT_ONCE, lease=LEASE, token=uuid4())
        seconds.append(time.perf_counter() - begun)
        if len(claimed.deliveries) != AT_ONCE:
            raise RuntimeError(f"claimed {len(claimed.deliveries)} of {AT_ONCE}")
        await store.settle([Settlement(delivery, Done()) for delivery in claimed.deliveries])
    return statistics.median(seconds)
