"""Operator queries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from nightmail.clock import Clock
from nightmail.limits import ByteBudget
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats
from nightmail.stores.mysql import rows
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.moments import EARLIEST, LATEST, microseconds, now
from nightmail.stores.mysql.text import Sql, Value, filled, union
from nightmail.stores.mysql.transaction import Session
from nightmail.stores.shared.marks import LEVELS
from nightmail.stores.sql.statements import Statement


class Inspecting:
    """The statements of `Inspection`."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

    async def peek(
        self,
        session: Session,
        *,
        queue: str | None,
        timer_id: str | None,
        due_before: datetime | None,
        limit: int,
    ) -> list[PendingMessage]:
        """See `Inspection.peek`."""
        values: dict[str, Value] = {
            "queue": None if queue is None else queue.encode(),
            "timer_id": None if timer_id is None else timer_id.encode(),
            "due_before": LATEST if due_before is None else min(max(due_before, EARLIEST), LATEST),
            "limit": max(limit, 0),
            "now": now(self._clock),
        }
        found = await session.ask(self._filled("peek", {**values, "branches": self._branches(values)}))
        return [rows.pending(row) for row in found.rows]

    def _branches(self, values: Mapping[str, Value]) -> Sql:
        if values["timer_id"] is not None:
            return self._filled("peek_timer", values)
        if values["queue"] is None:
            return self._filled("peek_all", values)
        return union(
            self._filled("peek_level", {**values, "level": level, "parked": parked})
            for level in LEVELS
            for parked in (0, 1)
        )

    async def dead(
        self, link: Link, which: DeadFilter, *, limit: int, cursor: int | None, max_bytes: int
    ) -> list[DeadLetter]:
        """See `Inspection.dead`."""
        values: dict[str, Value] = {
            **chosen(self._statements, which, now(self._clock)),
            "cursor": cursor,
            "limit": max(limit, 0),
        }
        (found,) = await link.ask(self._filled("dead", values))
        budget = ByteBudget(max_bytes)
        ids = [row[0] for row in found.rows if budget.take(int(row[1]))]
        if not ids:
            return []
        (letters,) = await link.ask(self._filled("read_dead", {"ids": ids}))
        by_id = {row[0]: rows.dead_letter(row) for row in letters.rows}
        return [by_id[id_] for id_ in ids if id_ in by_id]

    async def stats(self, link: Link) -> dict[str, QueueStats]:
        """See `Inspection.stats`."""
        alive, dead = await link.ask(
            self._filled("stats", {"now": now(self._clock)}), self._filled("dead_stats", {})
        )
        by_queue = {rows.text(row[0]): row for row in alive.rows}
        buried = {rows.text(row[0]): int(row[1]) for row in dead.rows}
        return {
            queue: rows.queue_stats(by_queue.get(queue), buried.get(queue, 0))
            for queue in sorted({*by_queue, *buried})
        }

    def _filled(self, name: str, values: Mapping[str, Value]) -> Sql:
        return filled(self._statements[name], values)


def chosen(statements: Mapping[str, Statement], which: DeadFilter, moment: Sql) -> dict[str, Value]:
    """The source of the selected dead letters, `letters`, and the condition on them, `which`."""
    values: dict[str, Value] = {
        "queue": None if which.queue is None else which.queue.encode(),
        "reason": which.reason,
        "error": which.error,
        "older_than": None if which.older_than is None else microseconds(which.older_than),
        "no_ids": which.ids is None,
        "ids": which.ids or (),
        "now": moment,
    }
    # By id, or else along the index that gives the order.
    letters = "of_all_queues" if which.queue is None or which.ids is not None else "of_one_queue"
    return {
        "letters": filled(statements[letters], {}),
        "which": filled(statements["which_letters"], values),
    }
