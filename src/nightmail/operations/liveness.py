"""Which workers are alive, and who consumes what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nightmail.controls import CONSUMERS_KEPT_FOR, LastConsumer, WorkerRecord
from nightmail.wording import length

LIVE_FOR: Final = timedelta(seconds=30)
"""A worker that has not reported for longer than this counts as lost: it reports every ten seconds."""


def is_live(worker: WorkerRecord, now: datetime) -> bool:
    """Whether this worker was seen lately. `now` is the store's clock, as `seen_at` is."""
    return now - worker.seen_at <= LIVE_FOR


def consumers(queue: str, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    """Those that consume this queue, or did when they were last seen."""
    return [worker for worker in workers if queue in worker.queues]


def subscribers(worker: WorkerRecord) -> list[Mapping[str, Any]]:
    """What this process says about each of its subscribers; nothing, if other software reported it."""
    said = worker.state.get("subscribers")
    return [each for each in said if isinstance(each, Mapping)] if isinstance(said, list) else []


def total(said: Iterable[Mapping[str, Any]], name: str) -> float:
    """The sum of this number over subscribers. What is no number counts as none: anything may report itself."""
    return sum(value for each in said if isinstance(value := each.get(name), int | float))


def clock_of_host(worker: WorkerRecord) -> datetime | None:
    """What the clock of its machine showed when it sent its report. `None` if it did not say."""
    said = worker.state.get("clock")
    try:
        shown = datetime.fromisoformat(said) if isinstance(said, str) else None
        return None if shown is None or shown.tzinfo is None else shown.astimezone(UTC)
    except (ValueError, OverflowError):
        return None  # Anything may report itself.


def name_of(worker: WorkerRecord | LastConsumer) -> str:
    """`host-2/77`: its host and its process id."""
    return f"{worker.host}/{worker.pid}"


def last_seen(worker: str | None, seen_ago: timedelta | None) -> str:
    """When the last one was seen that consumed a queue; no name: none is known."""
    if worker is None or seen_ago is None:
        return f"none has been seen within {CONSUMERS_KEPT_FOR.days} days"
    return f"the last one was seen {length(seen_ago)} ago, {worker}"
