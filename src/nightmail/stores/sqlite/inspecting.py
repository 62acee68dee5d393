"""Operator queries: pending messages, dead letters, counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from nightmail.limits import ByteBudget
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats
from nightmail.stores.sql.verbs import Verb
from nightmail.stores.sqlite import rows
from nightmail.stores.sqlite.queries import Queries
from nightmail.stores.sqlite.times import BEGINNING_OF_TIME, StoreTime, before, stored_moment


class Inspecting:
    """The verbs `peek`, `dead` and `stats`."""

    def __init__(self, sql: Queries, time: StoreTime) -> None:
        self._sql = sql
        self._time = time

    def peek(
        self, queue: str | None, *, timer_id: str | None, due_before: datetime | None, limit: int
    ) -> Verb[list[PendingMessage]]:
        """Waiting messages by due time."""
        narrowed: Mapping[str, Any] = {
            "due_before": None if due_before is None else stored_moment(due_before),
            "limit": max(limit, 0),
            "now": self._time.now(),
        }
        if queue is None:
            found = yield self._sql("peek", timer_id=timer_id, **narrowed)
        elif timer_id is None:
            found = yield self._sql("peek_queue", queue=queue, **narrowed)
        else:
            found = yield self._sql("peek_timer", queue=queue, timer_id=timer_id, **narrowed)
        return [rows.pending_message(row) for row in found]

    def dead(
        self, which: DeadFilter, *, limit: int, cursor: int | None, max_bytes: int
    ) -> Verb[list[DeadLetter]]:
        """Dead letters, newest first, as many as fit into `max_bytes`."""
        wanted = conditions(which, self._time.now())
        sizes = yield self._sql(narrowed("dead", which), cursor=cursor, limit=max(limit, 0), **wanted)
        budget = ByteBudget(max_bytes)
        ids = [id_ for id_, size in sizes if budget.take(size)]
        found = (yield self._sql("dead_letters", ids=json.dumps(ids))) if ids else []
        return [rows.dead_letter(row) for row in found]

    def stats(self) -> Verb[dict[str, QueueStats]]:
        """Statistics for each queue that is not empty."""
        now = self._time.now()
        dead: dict[str, int] = dict((yield self._sql("dead_counts")))
        stats = {queue: QueueStats(dead=letters) for queue, letters in dead.items()}
        for queue, ready, scheduled, running, superseded, oldest in (yield self._sql("stats", now=now)):
            stats[queue] = QueueStats(
                ready=ready,
                scheduled=scheduled,
                running=running,
                superseded=superseded,
                dead=dead.get(queue, 0),
                oldest_due_age=None
                if oldest is None
                else timedelta(microseconds=now - max(oldest, BEGINNING_OF_TIME)),
            )
        return stats


def narrowed(statement: str, which: DeadFilter) -> str:
    """The variant of a statement that finds the matching dead letters without scanning all others."""
    if which.ids is not None:
        return f"{statement}_ids"
    return statement if which.queue is None else f"{statement}_queue"


def conditions(which: DeadFilter, now: int) -> dict[str, Any]:
    """The filter as parameters of the statements."""
    return {
        "queue": which.queue,
        "reason": which.reason,
        "error": which.error,
        "died_before": None if which.older_than is None else before(now, which.older_than),
        "ids": None if which.ids is None else json.dumps(which.ids),
    }
