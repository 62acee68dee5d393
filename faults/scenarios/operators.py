"""What an operator does to a system at work."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from faults.rules.handling import PAUSED_WITHIN
from faults.scenarios.scenario import Scenario
from faults.stage import Stage
from nightmail import open_store

WATCHED_SECONDS: Final = 2.0
"""For how long a pause goes on after the last handler of its queue may have started."""
WORKERS: Final = 8
PUBLISHERS: Final = 4
BACKLOG: Final = 200
"""How many messages wait before the first worker starts: with less there is nothing to fetch ahead."""
PAUSED: Final = (("plain", None), ("thread", None), ("ordered", "publisher-1/line-0"), ("timer", None))
"""Queues, and one ordering key. Not the queue whose handlers have a session: that is opened before they start."""


async def paused(stage: Stage) -> None:
    """Pause a queue or a key of eight processes under load, and resume it."""
    for _ in range(PUBLISHERS):
        await stage.add_publisher()
    await stage.until(lambda: stage.seen.count("acknowledged") >= BACKLOG, "a backlog")
    for _ in range(WORKERS):
        await stage.add_worker()
    for worker in stage.workers:
        await stage.until_busy(worker, 1)
    store = open_store(stage.place.url)
    await store.open()
    try:
        for number in range(stage.faults):
            await stage.until_any_busy(stage.random.randint(10, 40))
            queue, key = PAUSED[number % len(PAUSED)]
            begun = time.monotonic()
            await store.pause(queue, ordering_key=key, by="nemesis")
            stage.journal.write("paused", queue=queue, ordering_key=key)
            await asyncio.sleep(PAUSED_WITHIN + WATCHED_SECONDS)
            stage.journal.write("resuming", queue=queue, ordering_key=key)
            await store.resume(queue, ordering_key=key)
            # It is no excuse: it hits no process.
            stage.note("queue paused" if key is None else "key paused", "its messages", begun)
            stage.say(f"{number + 1} of {stage.faults} paused: {key or queue}")
    finally:
        await store.close()


SCENARIOS: Final = (
    Scenario(
        name="paused",
        about="an operator pauses queues and ordering keys of eight processes under load",
        play=paused,
        faults=8,
        # Most handlers are short, so much is fetched ahead; then it waits for a long one.
        worker={"max_workers": 1, "handler_seconds": 0.02, "slow_seconds": 1.5},
        # About as much as they get done: the backlog stays, and is gone soon after the last pause.
        publisher={"pause": 0.05, "kinds": ("plain", "thread", "ordered", "timer")},
    ),
)
