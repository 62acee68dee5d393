"""How the queues stand, and where they are going."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from nightmail.controls import Pause
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
    change_per_second: float | None = None
    """Messages that came less messages that ended, per second. A store counts neither alone: metrics do."""
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
) -> list[QueueStatus]:
    """The queues by name; with what was seen `seconds` ago, how they change.

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
    return [
        replace(each, pauses=tuple(pause for pause in pauses if pause.queue == each.queue)) for each in found
    ]


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
