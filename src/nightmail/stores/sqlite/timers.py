"""Cancelling and rescheduling waiting messages."""

from __future__ import annotations

import json

from nightmail.message import Due
from nightmail.stores.sql.verbs import Change, Verb
from nightmail.stores.sqlite.queries import Queries, Row
from nightmail.stores.sqlite.ringing import NO_QUEUES, if_soon, ring
from nightmail.stores.sqlite.times import StoreTime, due_moment


class Timers:
    """The verbs `cancel`, `cancel_all` and `reschedule`."""

    def __init__(self, sql: Queries, time: StoreTime) -> None:
        self._sql = sql
        self._time = time

    def cancel(self, queue: str, timer_id: str) -> Verb[Change[bool]]:
        """Remove the owner of this timer id if it waits, and end its window. Returns whether it did."""
        removed = yield self._sql("cancel", queue=queue, timer_id=timer_id, now=self._time.now())
        if removed:
            yield self._sql("close_window", queue=queue, timer_id=timer_id)
        return Change(bool(removed), (yield from ring(self._sql, _released(queue, removed))))

    def cancel_all(
        self, queue: str, *, limit: int | None = None, newest: int | None = None
    ) -> Verb[Change[int]]:
        """Remove the waiting messages of this queue, and end their windows. Returns how many."""
        now = self._time.now()
        if limit is None:
            # A write first: a caller's transaction that begins with a query could not be made to write afterwards.
            yield self._sql("close_windows", queue=queue, now=now)
            removed = yield self._sql("cancel_all", queue=queue, now=now)
        else:
            found = yield self._sql("waiting_ids", queue=queue, now=now, newest=newest, limit=max(limit, 0))
            if not found:
                return Change(0)
            ids = json.dumps([id_ for (id_,) in found])
            yield self._sql("close_windows_of", ids=ids)
            removed = yield self._sql("cancel_some", ids=ids)
        return Change(len(removed), (yield from ring(self._sql, _released(queue, removed))))

    def newest(self) -> Verb[int]:
        """The highest id there is now."""
        ((newest,),) = yield self._sql("newest")
        return int(newest)

    def reschedule(self, queue: str, timer_id: str, due: Due) -> Verb[Change[bool]]:
        """Move the owner of this timer id to another due time if it waits. Returns whether it did."""
        now = self._time.stamp()
        due_at = due_moment(due, now)
        moved = yield self._sql("reschedule", queue=queue, timer_id=timer_id, due_at=due_at, now=now)
        rings = (if_soon(queue, due_at, now) if moved else NO_QUEUES) | _released(queue, moved)
        return Change(bool(moved), (yield from ring(self._sql, rings)))


def _released(queue: str, removed: list[Row]) -> frozenset[str]:
    """The queue, if one of these had an ordering key: the next message with that key may run.

    Rung even if no next message is visible: one may be about to be published in an open transaction.
    """
    return frozenset((queue,)) if any(key is not None for (key,) in removed) else NO_QUEUES
