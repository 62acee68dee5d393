"""What an operator asks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from heapq import nlargest, nsmallest

from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats
from nightmail.stores.redis.asking import Asking
from nightmail.stores.redis.ids import digits
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.letter_records import letter_records
from nightmail.stores.redis.moments import micros, moment_micros
from nightmail.stores.redis.records import records
from nightmail.stores.redis.registry import Registry


class Inspecting:
    """The questions of `Inspection`: one call for each queue."""

    def __init__(self, lane: Lane, registry: Registry, asking: Asking) -> None:
        self._lane = lane
        self._registry = registry
        self._asking = asking

    async def peek(
        self, queue: str | None, *, timer_id: str | None, due_before: datetime | None, limit: int
    ) -> list[PendingMessage]:
        """See `Inspection.peek`."""
        if limit <= 0:
            return []
        before = "" if due_before is None else str(moment_micros(due_before))
        waiting: list[PendingMessage] = []
        for name in await self._queues(queue):
            call = self._asking.call("peek", [self._asking.keys.tag(name)], limit, before, timer_id or "")
            (found,) = await self._lane.call(call)
            waiting += [record.pending(name) for record in records(found)]
        return nsmallest(limit, waiting, key=lambda message: (message.due_at, message.id))

    async def dead(self, which: DeadFilter, *, limit: int, cursor: int | None) -> list[DeadLetter]:
        """See `Inspection.dead`."""
        if limit <= 0 or which.ids == ():
            return []
        found: list[DeadLetter] = []
        for name in await self._queues(which.queue):
            found += await self._dead_of(name, which, limit, cursor)
        return nlargest(limit, found, key=lambda letter: letter.id)

    async def _dead_of(
        self, queue: str, which: DeadFilter, limit: int, cursor: int | None
    ) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        below = b"" if cursor is None else digits(cursor)
        while True:
            call = self._asking.call(
                "dead",
                [self._asking.keys.tag(queue)],
                limit - len(found),
                below,
                "" if which.older_than is None else micros(which.older_than),
                "" if which.reason is None else f"!{which.reason}",
                "" if which.error is None else f"!{which.error}",
                *sorted({digits(id_) for id_ in which.ids or ()}, reverse=True),
            )
            ((below, part),) = await self._lane.call(call)
            found += [record.letter(queue) for record in letter_records(part)]
            if not below or len(found) >= limit:
                return found

    async def stats(self) -> dict[str, QueueStats]:
        """See `Inspection.stats`."""
        stats: dict[str, QueueStats] = {}
        for name in await self._registry.queues():
            (found,) = await self._lane.call(self._asking.call("stats", [self._asking.keys.tag(name)]))
            ready, scheduled, running, superseded, dead, age = (int(number) for number in found)
            stats[name] = QueueStats(
                ready=ready,
                scheduled=scheduled,
                running=running,
                superseded=superseded,
                dead=dead,
                oldest_due_age=None if age < 0 else timedelta(microseconds=age),
            )
        return {name: standing for name, standing in stats.items() if standing != QueueStats()}

    async def _queues(self, queue: str | None) -> Sequence[str]:
        return await self._registry.queues() if queue is None else [queue]
