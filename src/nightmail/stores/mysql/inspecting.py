"""Operator queries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from heapq import nsmallest
from typing import Final

from nightmail.clock import Clock
from nightmail.limits import ByteBudget
from nightmail.records import (
    FINGERPRINT_LIMIT,
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
from nightmail.stores.mysql.times import EARLIEST, LATEST, later, microseconds, now
from nightmail.stores.shared.dead_groups import PAGE, DeadGroups
from nightmail.stores.shared.marks import LEVELS
from nightmail.stores.sql.verbs import Verb

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ABOVE_ALL: Final = 2**63 - 1
_AT_ONCE: Final = 50
"""Of how many queues in one round trip it is asked what runs, and which message is the oldest."""


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
            "timer_id": None if timer_id is None else timer_id.encode(),
            "due_before": LATEST if due_before is None else min(max(due_before, EARLIEST), LATEST),
            "after": self._after(cursor),
            "limit": max(limit, 0),
            "now": now(self._clock),
        }
        if queue is not None:
            branches = self._branches(queue.encode(), values)
        else:
            branches = yield from self._of_all_queues(values)
        found: Answer = yield self._sql("peek", **values, branches=branches)
        return [rows.pending(row) for row in found.rows]

    def _of_all_queues(self, values: dict[str, Value]) -> Verb[Sql]:
        """The first of each queue, and of these the first of all. One by one: a caller's connection takes no more."""
        waiting: list[tuple[datetime, int]] = []
        for name in (yield from queues_with_messages(self._sql)):
            found: Answer = yield self._sql("peek_ids", **values, branches=self._branches(name, values))
            waiting += [(due_at, id_) for id_, due_at in found.rows]
        first = nsmallest(int(str(values["limit"])), waiting)
        return self._sql("peek_these", ids=[id_ for _, id_ in first], **values)

    def _after(self, cursor: tuple[datetime, int] | None) -> Sql:
        if cursor is None:
            return ALWAYS
        return self._sql("after", due_at=min(max(cursor[0], EARLIEST), LATEST), id=cursor[1])

    def _branches(self, queue: bytes, values: dict[str, Value]) -> Sql:
        if values["timer_id"] is not None:
            return self._sql("peek_timer", queue=queue, **values)
        return union(
            self._sql("peek_level", **values, queue=queue, level=level, parked=parked)
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
        """See `Inspection.summarize_dead`. Page by page, so that memory holds no more than one."""
        letters = chosen(self._sql, which, now(self._clock))
        groups = DeadGroups(_moment)
        below = _ABOVE_ALL
        while True:
            found: Answer = yield self._sql(
                "dead_errors",
                **letters,
                below=below,
                limit=PAGE,
                characters=FINGERPRINT_LIMIT,
                earliest=(EARLIEST - _EPOCH) // timedelta(microseconds=1),
            )
            groups.add_page(tuple(row) for row in found.rows)
            if len(found.rows) < PAGE:
                return groups.summary(limit)
            below = found.rows[-1][0]

    def stats(self) -> Verb[dict[str, QueueStats]]:
        """See `Inspection.stats`."""
        moment = now(self._clock)
        _, _, alive, dead = yield (
            "set transaction isolation level repeatable read",
            self._sql("snapshot"),
            self._sql("stats", now=moment),
            self._sql("dead_stats"),
        )
        counted = {row[0]: row[1:] for row in alive.rows}
        running: dict[bytes, int] = {}
        oldest: dict[bytes, int | None] = {}
        names = list(counted)
        for start in range(0, len(names), _AT_ONCE):
            queues = names[start : start + _AT_ONCE]
            due = [queue for queue in queues if counted[queue][1]]
            run, *found = yield (
                self._sql("running_stats", queues=queues, now=moment),
                *(self._oldest(queue, moment) for queue in due),
            )
            running |= dict(run.rows)
            oldest |= {queue: answer.rows[0][0] for queue, answer in zip(due, found, strict=True)}
        yield "commit"
        stats = {queue: QueueStats(dead=count) for queue, count in dead.rows}
        for queue, counts in counted.items():
            letters = stats.get(queue, QueueStats()).dead
            stats[queue] = rows.queue_stats(counts, running.get(queue, 0), oldest.get(queue), letters)
        return {rows.text(queue): stats[queue] for queue in sorted(stats)}

    def _oldest(self, queue: bytes, moment: Sql) -> Sql:
        values: dict[str, Value] = {
            "timer_id": None,
            "due_before": later(moment, timedelta(microseconds=1)),
            "after": ALWAYS,
            "limit": 1,
            "now": moment,
        }
        return self._sql("oldest", now=moment, branches=self._branches(queue, values))


def queues_with_messages(sql: Queries) -> Verb[list[bytes]]:
    """The queues that have messages, by name."""
    names: list[bytes] = []
    found: Answer = yield sql("next_queue", queue=b"")
    while found.rows:
        names.append(found.rows[0][0])
        found = yield sql("next_queue", queue=names[-1])
    return names


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=int(microseconds))


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
