"""How the queues stand, and where they are going."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from nightmail.controls import Pause, WorkerRecord
from nightmail.operations.liveness import subscribers, total
from nightmail.records import QueueStats


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """One queue, at one look or between two."""

    queue: str
    ready: int
    scheduled: int
    running: int
    dead: int
    oldest_due_age: timedelta | None
    """How late the oldest ready message is."""
    in_per_second: float | None = None
    """What came: what ended, and the change between two looks."""
    out_per_second: float = 0.0
    """What ended, done or dead, as live workers say: over the last ten seconds or so."""
    change_per_second: float | None = None
    """Messages that came less messages that ended, per second, between two looks."""
    dead_per_second: float | None = None
    drained_in: timedelta | None = None
    """When nothing will be ready, if ready messages go on to become fewer as they did between two looks."""
    pauses: tuple[Pause, ...] = ()
    """What is paused of it: the whole queue, or ordering keys."""


def status(
    now: Mapping[str, QueueStats],
    before: Mapping[str, QueueStats] | None = None,
    seconds: float = 0.0,
    pauses: Sequence[Pause] = (),
    workers: Sequence[WorkerRecord] = (),
) -> list[QueueStatus]:
    """The queues by name; with what was seen `seconds` ago, how they change; with the live workers, what goes out.

    A queue that was not empty then, or that is paused, is listed even if it is empty now.
    """
    names = sorted({*now, *(before or ()), *(pause.queue for pause in pauses)})
    if before is None or seconds <= 0:
        found = [_status(name, now.get(name, QueueStats())) for name in names]
    else:
        found = [
            _changing(name, now.get(name, QueueStats()), before.get(name, QueueStats()), seconds)
            for name in names
        ]
    return [_completed(each, pauses, workers) for each in found]


def _completed(status: QueueStatus, pauses: Sequence[Pause], workers: Sequence[WorkerRecord]) -> QueueStatus:
    out = sum(_ended_per_second(worker, status.queue) for worker in workers)
    change = status.change_per_second
    return replace(
        status,
        out_per_second=out,
        # Not below zero: the two were not counted over the same seconds.
        in_per_second=None if change is None else max(out + change, 0.0),
        pauses=tuple(pause for pause in pauses if pause.queue == status.queue),
    )


def _ended_per_second(worker: WorkerRecord, queue: str) -> float:
    rates = (each.get("ended_per_second") for each in subscribers(worker) if not each.get("dead_letters"))
    return total((each for each in rates if isinstance(each, Mapping)), queue)


def _status(queue: str, stats: QueueStats) -> QueueStatus:
    return QueueStatus(
        queue=queue,
        ready=stats.ready,
        scheduled=stats.scheduled,
        running=stats.running,
        dead=stats.dead,
        oldest_due_age=stats.oldest_due_age,
    )


def _changing(queue: str, now: QueueStats, before: QueueStats, seconds: float) -> QueueStatus:
    fewer_per_second = (before.ready - now.ready) / seconds
    drained_in = None
    if now.ready and fewer_per_second > 0:
        drained_in = timedelta(seconds=round(now.ready / fewer_per_second))
    return QueueStatus(
        queue=queue,
        ready=now.ready,
        scheduled=now.scheduled,
        running=now.running,
        dead=now.dead,
        oldest_due_age=now.oldest_due_age,
        change_per_second=(_alive(now) - _alive(before)) / seconds,
        dead_per_second=(now.dead - before.dead) / seconds,
        drained_in=drained_in,
    )


def _alive(stats: QueueStats) -> int:
    return stats.ready + stats.scheduled + stats.running + stats.superseded
