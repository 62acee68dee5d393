"""How the queues stand, and where they are going."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Final

from nightmail.controls import Pause, QueueStatus, WorkerRecord
from nightmail.operations.liveness import is_live, subscribers
from nightmail.operations.workers import clock_of
from nightmail.records import QueueStats
from nightmail.store import FullStore

__all__ = ["Looks", "QueueStatus", "status"]

_TOO_MUCH: Final = 1e9
"""No queue is that late, by thirty years, nor that fast."""


class Looks:
    """Looks at the queues of a store, one time after another: from the second look on it shows how they change."""

    def __init__(self, store: FullStore, queues: Collection[str] | None = None) -> None:
        """At these queues, or at all that there are."""
        self._store = store
        self._only = None if not queues else set(queues)
        self._before: tuple[float, dict[str, QueueStats]] | None = None
        self.status: list[QueueStatus] = []
        """What the last look showed."""
        self.took = 0.0
        """How many seconds it took."""

    async def look(self) -> list[QueueStatus]:
        """How they stand now, and how they changed since the last look."""
        begun = monotonic()
        found = await self._store.stats()
        at = monotonic()
        pauses = await self._store.pauses()
        now = await clock_of(self._store)
        workers = [each for each in await self._store.workers() if is_live(each, now)]
        if self._only is not None:
            found = {name: found.get(name, QueueStats()) for name in self._only}
            pauses = [pause for pause in pauses if pause.queue in self._only]
        before, seconds = (None, 0.0) if self._before is None else (self._before[1], at - self._before[0])
        shown = status(found, before, seconds, pauses, workers, now)
        if self._only is not None:
            shown = [each for each in shown if each.queue in self._only]
        self.status, self._before = shown, (at, found)
        self.took = monotonic() - begun
        return shown

    async def look_twice(self, seconds: float) -> list[QueueStatus]:
        """Look, and again after so many seconds, for what changes. 0: look once."""
        begun = monotonic()
        shown = await self.look()
        if not seconds:
            return shown
        # From one beginning to the next: where a look takes long, the answer is not later by two of them.
        await asyncio.sleep(max(seconds - (monotonic() - begun), seconds / 2))
        return await self.look()


def status(
    now: Mapping[str, QueueStats],
    before: Mapping[str, QueueStats] | None = None,
    seconds: float = 0.0,
    pauses: Sequence[Pause] = (),
    workers: Sequence[WorkerRecord] = (),
    at: datetime | None = None,
) -> list[QueueStatus]:
    """The queues by name; with what was seen `seconds` ago, how they change; with the live workers, what goes out.

    A queue that was not empty then, that is paused, or that live workers consume, is listed even if it is empty now.
    `at` is the store's clock: with it, for how long queues are paused.
    """
    work = _Work(workers)
    names = sorted({*now, *(before or ()), *(pause.queue for pause in pauses), *work.consumers})
    if before is None or seconds <= 0:
        found = [_status(name, now.get(name, QueueStats())) for name in names]
    else:
        found = [
            _changing(name, now.get(name, QueueStats()), before.get(name, QueueStats()), seconds)
            for name in names
        ]
    return [work.added_to(_paused(each, pauses, at)) for each in found]


class _Work:
    """What workers say about each queue. Those of an earlier version, and other software, need not say all of it."""

    def __init__(self, workers: Iterable[WorkerRecord]) -> None:
        self.consumers: Counter[str] = Counter()
        self._out: Counter[str] = Counter()
        self._late: dict[str, float] = {}
        for worker in workers:
            self.consumers.update(set(worker.queues))
            for each in subscribers(worker):
                if not each.get("dead_letters"):
                    for queue, ended in _numbers(each.get("ended_per_second")):
                        self._out[queue] += ended
                    for queue, late in _numbers(each.get("late_seconds")):
                        self._late[queue] = max(late, self._late.get(queue, 0.0))

    def added_to(self, status: QueueStatus) -> QueueStatus:
        late, out = self._late.get(status.queue), float(self._out[status.queue])
        change = status.change_per_second
        return replace(
            status,
            lateness=None if late is None else timedelta(seconds=late),
            out_per_second=out,
            # Not below zero: the two were not counted over the same seconds.
            in_per_second=None if change is None else max(out + change, 0.0),
            workers=self.consumers[status.queue],
        )


def _numbers(said: object) -> Iterator[tuple[str, Any]]:
    """The numbers of queues: what is none, or out of all bounds, is left out."""
    for queue, number in said.items() if isinstance(said, Mapping) else ():
        if isinstance(number, int | float) and 0 <= number < _TOO_MUCH:
            yield queue, number


def _paused(status: QueueStatus, pauses: Sequence[Pause], at: datetime | None) -> QueueStatus:
    """What of it is paused, and for how long."""
    own = tuple(pause for pause in pauses if pause.queue == status.queue)
    whole = (
        {} if at is None else {each.automatic: at - each.since for each in own if each.ordering_key is None}
    )
    return replace(status, pauses=own, paused_for=whole.get(False), breaker_open_for=whole.get(True))


def _status(queue: str, stats: QueueStats) -> QueueStatus:
    return QueueStatus(
        queue=queue,
        ready=stats.ready,
        scheduled=stats.scheduled,
        running=stats.running,
        superseded=stats.superseded,
        dead=stats.dead,
        oldest_due_age=stats.oldest_due_age,
    )


def _changing(queue: str, now: QueueStats, before: QueueStats, seconds: float) -> QueueStatus:
    fewer_per_second = (before.ready - now.ready) / seconds
    drained_in = None
    if now.ready and fewer_per_second > 0:
        drained_in = timedelta(seconds=round(now.ready / fewer_per_second))
    return replace(
        _status(queue, now),
        change_per_second=(_alive(now) - _alive(before)) / seconds,
        dead_per_second=(now.dead - before.dead) / seconds,
        drained_in=drained_in,
    )


def _alive(stats: QueueStats) -> int:
    return stats.ready + stats.scheduled + stats.running + stats.superseded
