"""Operator queries: pending messages, dead letters, counts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from nightmail.limits import ByteBudget
from nightmail.records import (
    DeadFilter,
    DeadLetter,
    DeadSummary,
    PendingMessage,
    QueueStats,
    StoredMessage,
)
from nightmail.stores.shared.dead_groups import PAGE, DeadGroups
from nightmail.stores.sql.verbs import Verb
from nightmail.stores.sqlite import rows
from nightmail.stores.sqlite.queries import Queries
from nightmail.stores.sqlite.times import (
    BEGINNING_OF_TIME,
    StoreTime,
    before,
    readable_moment,
    stored_moment,
)

_BEGINNING: Final = -(2**63)
_END: Final = 2**63 - 1


class Inspecting:
    """The verbs that only read."""

    def __init__(self, sql: Queries, time: StoreTime) -> None:
        self._sql = sql
        self._time = time

    def peek(
        self,
        queue: str | None,
        *,
        timer_id: str | None,
        due_before: datetime | None,
        limit: int,
        cursor: tuple[datetime, int] | None,
    ) -> Verb[list[PendingMessage]]:
        """Waiting messages by due time."""
        narrowed: Mapping[str, Any] = {
            "queue": queue,
            "due_before": _END if due_before is None else stored_moment(due_before),
            "after": _BEGINNING if cursor is None else stored_moment(cursor[0]),
            "after_id": 0 if cursor is None else cursor[1],
            "limit": max(limit, 0),
            "now": self._time.now(),
        }
        if timer_id is None:
            found = yield self._sql("peek", **narrowed)
        else:
            found = yield self._sql("peek_timer", timer_id=timer_id, **narrowed)
        return [rows.pending_message(row) for row in found]

    def find(self, ids: Sequence[int]) -> Verb[list[StoredMessage]]:
        """The messages with these ids."""
        found = yield self._sql("find", ids=json.dumps(list(ids)), now=self._time.now())
        return [rows.stored_message(row) for row in found]

    def dead(
        self, which: DeadFilter, *, limit: int, cursor: int | None, max_bytes: int
    ) -> Verb[list[DeadLetter]]:
        """Dead letters, newest first, as many as fit into `max_bytes`."""
        wanted = conditions(which, self._time.now())
        below = _END if cursor is None else cursor
        sizes = yield self._sql(narrowed("dead", which), cursor=below, limit=max(limit, 0), **wanted)
        budget = ByteBudget(max_bytes)
        ids = [id_ for id_, size in sizes if budget.take(size)]
        found = (yield self._sql("read_dead", ids=json.dumps(ids))) if ids else []
        return [rows.dead_letter(row) for row in found]

    def summarize_dead(self, which: DeadFilter, *, limit: int) -> Verb[DeadSummary]:
        """Dead letters, counted by group: page by page, so that memory holds no more than one."""
        wanted = conditions(which, self._time.now())
        groups = DeadGroups(readable_moment)
        cursor = _END
        while page := (yield self._sql(narrowed("dead_errors", which), cursor=cursor, limit=PAGE, **wanted)):
            groups.add_page(page)
            cursor = page[-1][0]
        return groups.summary(limit)

    def stats(self) -> Verb[dict[str, QueueStats]]:
        """Statistics for each queue that is not empty."""
        now = self._time.now()
        dead: dict[str, int] = dict((yield self._sql("dead_stats")))
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
