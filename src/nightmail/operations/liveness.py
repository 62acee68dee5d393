"""Which workers are alive, and who consumes what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from nightmail.controls import WorkerRecord

LIVE_FOR: Final = timedelta(seconds=30)
"""A worker that has not reported for longer than this counts as lost: it reports every ten seconds."""


def is_live(worker: WorkerRecord, now: datetime) -> bool:
    """Whether this worker was seen lately. `now` is the store's clock, as `seen_at` is."""
    return now - worker.seen_at <= LIVE_FOR


def consumers(queue: str, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    """Those that consume this queue, or did when they were last seen."""
    return [worker for worker in workers if queue in consumed_by(worker)]


def consumed_by(worker: WorkerRecord) -> set[str]:
    """The queues that it takes messages from. One that looks after dead letters takes none."""
    messages, letters = set[str](), set[str]()
    for each in subscribers(worker):
        queues = each.get("queues")
        if isinstance(queues, list):
            (letters if each.get("dead_letters") else messages).update(map(str, queues))
    return set(worker.queues) - (letters - messages)


def subscribers(worker: WorkerRecord) -> list[Mapping[str, Any]]:
    """What this process says about each of its subscribers; nothing, if other software reported it."""
    said = worker.state.get("subscribers")
    return [each for each in said if isinstance(each, Mapping)] if isinstance(said, list) else []


def total(said: Iterable[Mapping[str, Any]], name: str) -> float:
    """The sum of this number over subscribers. What is no number counts as none: anything may report itself."""
    return sum(value for each in said if isinstance(value := each.get(name), int | float))


def name_of(worker: WorkerRecord) -> str:
    """`host-2/77`: its host and its process id."""
    return f"{worker.host}/{worker.pid}"
