"""The verbs of those who steer a store and ask why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from heapq import nsmallest
from itertools import islice
from operator import attrgetter

from nightmail.clock import Clock
from nightmail.controls import (
    MOST_AHEAD,
    LastConsumer,
    LeasedMessage,
    MessageFacts,
    Pause,
    WorkerRecord,
    WorkerReport,
    check_pausable,
    check_pause,
    storable_reason,
    worker_of,
)
from nightmail.message import Delivery, check_name
from nightmail.records import DeadLetter
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.data import MemoryData
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.rows import Row
from nightmail.stores.memory.times import due_time


class MemoryControl:
    """See `Control`."""

    data: MemoryData
    _clock: Clock

    async def pause(
        self,
        queue: str,
        *,
        ordering_key: str | None = None,
        until: datetime | timedelta | None = None,
        by: str,
        reason: str | None = None,
        automatic: bool = False,
    ) -> None:
        """Claim nothing of this queue or key for a while."""
        check_pause(queue, ordering_key, until, by, automatic=automatic)
        with self.data.step:
            now = self._now()
            self.data.tables.controls.pause(
                Pause(
                    queue=queue,
                    ordering_key=ordering_key,
                    by=by,
                    reason=storable_reason(reason),
                    since=now,
                    until=None if until is None else due_time(until, now),
                    automatic=automatic,
                )
            )
            self.data.tables.ring(queue)

    async def resume(self, queue: str, *, ordering_key: str | None = None, automatic: bool = False) -> bool:
        """End a pause."""
        check_pausable(queue, ordering_key)
        with self.data.step:
            ended = self.data.tables.controls.resume(queue, ordering_key, automatic, self._now())
            self.data.tables.ring(queue)
        return ended

    async def probe_again(self, probe: Delivery) -> None:
        """Let the next probe through."""
        with self.data.step:
            self.data.tables.controls.probe_again(probe.queue, probe.claimed_at, self._now())
            self.data.tables.ring(probe.queue)

    async def pauses(self, queue: str | None = None) -> list[Pause]:
        """The pauses in force."""
        with self.data.step:
            found = self.data.tables.controls.pauses(self._now())
        return [pause for pause in found if queue is None or pause.queue == queue]

    async def request_stop(self, id_: int, *, by: str) -> bool:
        """Ask for this running message to be stopped."""
        check_name("by", by)
        async with self.data.turn():
            row = self._find(id_)
            if row is None or not row.running(self._now()):
                return False
            with Changes(self.data.tables).editing(row):
                row.stop_requested_by = by
            return True

    async def report(self, worker: WorkerReport) -> None:
        """Note this worker."""
        with self.data.step:
            self.data.tables.controls.report(worker, self._now())

    async def sign_off(self, worker_id: str) -> None:
        """Forget this worker."""
        with self.data.step:
            self.data.tables.controls.sign_off(worker_id, self._now())

    async def workers(self) -> list[WorkerRecord]:
        """The workers seen within the last day."""
        with self.data.step:
            return self.data.tables.controls.workers(self._now())

    async def last_consumers(self) -> dict[str, LastConsumer]:
        """Who consumed each queue last, within 90 days."""
        with self.data.step:
            return self.data.tables.controls.last_consumers(self._now())

    async def leases(self, *, limit: int = 1000) -> list[LeasedMessage]:
        """Running messages, the longest running first."""
        with self.data.step:
            now = self._now()
            running = [_leased(row) for row in self._rows() if row.running(now)]
        return nsmallest(limit, running, key=attrgetter("claimed_at", "id"))

    async def facts(self, id_: int) -> MessageFacts:
        """What is known about this message."""
        with self.data.step:
            now = self._now()
            row = self._find(id_)
            if row is None:
                return MessageFacts(
                    now=now, message=None, letter=self._letter(id_), delivered_at=self._delivered_at(id_)
                )
            queue = self.data.tables.queue(row.queue)
            before = None if row.running(now) else queue.before(row, now)
            owner = queue.owner_of(row.timer_id) if row.superseded and row.timer_id is not None else None
            return MessageFacts(
                now=now,
                message=row.stored(now),
                worker_id=worker_of(row.token) if row.token is not None and row.running(now) else None,
                stop_requested_by=row.stop_requested_by,
                key_held_by=None if before is None else before.stored(now),
                superseded_by=None if owner is None else owner.id,
                locked=self.data.is_locked(row),
                ahead=0 if row.running(now) else self._ahead(queue, row, now),
                pauses=tuple(
                    pause
                    for pause in self.data.tables.controls.pauses(now)
                    if pause.queue == row.queue and pause.ordering_key in (None, row.ordering_key)
                ),
            )

    def _ahead(self, queue: Queue, row: Row, now: datetime) -> int:
        ahead = (
            each
            for each in self.data.committed(queue)
            if not each.running(now) and not each.superseded and (each.due_at, each.id) < (row.due_at, row.id)
        )
        return sum(1 for _ in islice(ahead, MOST_AHEAD))

    def _letter(self, id_: int) -> DeadLetter | None:
        found = [each.record for each in self.data.tables.letters() if each.record.message_id == id_]
        newest = max(found, key=attrgetter("id"), default=None)
        return None if newest is None else replace(newest, body=b"")

    def _delivered_at(self, id_: int) -> datetime | None:
        return next((each.delivered_at for each in self.data.delivered if each.id == id_), None)

    def _find(self, id_: int) -> Row | None:
        return next((row for row in self._rows() if row.id == id_), None)

    def _rows(self) -> Iterator[Row]:
        return (row for queue in self.data.tables.queues.values() for row in self.data.committed(queue))

    def _now(self) -> datetime:
        return self._clock.now() or datetime.now(UTC)


def _leased(row: Row) -> LeasedMessage:
    if row.token is None or row.claimed_at is None or row.lease_until is None:
        raise ValueError(f"message {row.id} is not leased")
    return LeasedMessage(
        id=row.id,
        queue=row.queue,
        worker_id=worker_of(row.token),
        attempts=row.attempts,
        deliveries=row.deliveries,
        claimed_at=row.claimed_at,
        lease_until=row.lease_until,
    )
