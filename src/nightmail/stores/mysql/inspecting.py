"""Operator queries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from nightmail.clock import Clock
from nightmail.limits import ByteBudget
from nightmail.records import (
    DeadFilter,
    DeadLetter,
    DeadSummary,
    PendingMessage,
    QueueStats,
    StoredMessage,
)
from nightmail.stores.mysql import rows
from nightmail.stores.mysql.requests import CHECK_TABLES, Answer
from nightmail.stores.mysql.text import ALWAYS, Queries, Sql, Value, union
from nightmail.stores.mysql.times import EARLIEST, LATEST, microseconds, now
from nightmail.stores.shared.marks import LEVELS
from nightmail.stores.sql.verbs import Verb


class Inspecting:
    """The queries of `Inspection`."""

    def __init__(self, sql: Queries, clock: Clock) -> None:
        self._sql = sql
        self._clock = clock

    def peek(
        self,
        queue: str | None,
        *,
        timer_id: str | None,
        due_before: datetime | None,
        limit: int,
        cursor: tuple[datetime, int] | None,
    ) -> Verb[list[PendingMessage]]:
        """See `Inspection.peek`."""
        yield CHECK_TABLES
        values: dict[str, Value] = {
            "queue": None if queue is None else queue.encode(),
            "timer_id": None if timer_id is None else timer_id.encode(),
            "due_before": LATEST if due_before is None else min(max(due_before, EARLIEST), LATEST),
            "after": self._after(cursor),
            "limit": max(limit, 0),
            "now": now(self._clock),
        }
        found: Answer = yield self._sql("peek", **values, branches=self._branches(values))
        return [rows.pending(row) for row in found.rows]

    def _after(self, cursor: tuple[datetime, int] | None) -> Sql:
        if cursor is None:
            return ALWAYS
        return self._sql("after", due_at=min(max(cursor[0], EARLIEST), LATEST), id=cursor[1])

    def _branches(self, values: dict[str, Value]) -> Sql:
        if values["timer_id"] is not None:
            return self._sql("peek_timer", **values)
        if values["queue"] is None:
            return self._sql("peek_all", **values)
        return union(
            self._sql("peek_level", **values, level=level, parked=parked)
            for level in LEVELS
            for parked in (0, 1)
        )

    def find(self, ids: Sequence[int]) -> Verb[list[StoredMessage]]:
        """See `Inspection.find`."""
        found: Answer = yield self._sql("find", ids=ids, now=now(self._clock))
        return [rows.stored(row) for row in found.rows]

    def dead(
        self, which: DeadFilter, *, limit: int, cursor: int | None, max_bytes: int
    ) -> Verb[list[DeadLetter]]:
        """See `Inspection.dead`."""
        found: Answer = yield self._sql(
            "dead", **chosen(self._sql, which, now(self._clock)), cursor=cursor, limit=max(limit, 0)
        )
        budget = ByteBudget(max_bytes)
        ids = [row[0] for row in found.rows if budget.take(int(row[1]))]
        if not ids:
            return []
        letters: Answer = yield self._sql("read_dead", ids=ids)
        by_id = {row[0]: rows.dead_letter(row) for row in letters.rows}
        return [by_id[id_] for id_ in ids if id_ in by_id]

    def summarize_dead(self, which: DeadFilter, *, limit: int) -> Verb[DeadSummary]:
        """See `Inspection.summarize_dead`."""
        found: Answer = yield self._sql(
            "summarize_dead", **chosen(self._sql, which, now(self._clock)), limit=max(limit, 0)
        )
        groups = tuple(rows.dead_group(row) for row in found.rows)
        return DeadSummary(int(found.rows[0][7]) if groups else 0, groups)

    def stats(self) -> Verb[dict[str, QueueStats]]:
        """See `Inspection.stats`."""
        alive, dead = yield self._sql("stats", now=now(self._clock)), self._sql("dead_stats")
        by_queue = {rows.text(row[0]): row for row in alive.rows}
        buried = {rows.text(row[0]): int(row[1]) for row in dead.rows}
        return {
            queue: rows.queue_stats(by_queue.get(queue), buried.get(queue, 0))
            for queue in sorted({*by_queue, *buried})
        }


def chosen(sql: Queries, which: DeadFilter, moment: Sql) -> dict[str, Value]:
    """The source of the selected dead letters, `letters`, and the condition on them, `which`."""
    # By id, or else along the index that gives the order.
    letters = "of_all_queues" if which.queue is None or which.ids is not None else "of_one_queue"
    condition = sql(
        "which_letters",
        queue=None if which.queue is None else which.queue.encode(),
        reason=which.reason,
        error=which.error,
        older_than=None if which.older_than is None else microseconds(which.older_than),
        no_ids=which.ids is None,
        ids=which.ids or (),
        now=moment,
    )
    return {"letters": sql(letters), "which": condition}
