"""Queries for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from nightmail.clock import Clock
from nightmail.records import (
    DeadFilter,
    DeadLetter,
    DeadSummary,
    PendingMessage,
    QueueStats,
    StoredMessage,
)
from nightmail.stores.postgres import rows
from nightmail.stores.postgres.requests import CustomPlan
from nightmail.stores.postgres.times import EARLIEST, LATEST, MOST_BYTES, age
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Verb


class Inspecting:
    """The verbs that only read."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
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
        values = {
            "queue": queue,
            "timer_id": timer_id,
            "due_before": None if due_before is None else min(max(due_before, EARLIEST), LATEST),
            "after": None if cursor is None else min(max(cursor[0], EARLIEST), LATEST),
            "after_id": None if cursor is None else cursor[1],
            "limit": limit,
            "now": self._clock.now(),
        }
        name = "peek" if timer_id is None else "peek_timer"
        return [rows.pending(row) for row in (yield CustomPlan(self._statements[name], values))]

    def find(self, ids: Sequence[int]) -> Verb[list[StoredMessage]]:
        """See `Inspection.find`."""
        values = {"ids": list(ids), "now": self._clock.now()}
        return [rows.stored(row) for row in (yield CustomPlan(self._statements["find"], values))]

    def dead(
        self, which: DeadFilter, *, limit: int, cursor: int | None, max_bytes: int
    ) -> Verb[list[DeadLetter]]:
        """See `Inspection.dead`."""
        values = {
            **filter_values(which),
            "cursor": cursor,
            "limit": limit,
            "max_bytes": min(max_bytes, MOST_BYTES),
            "now": self._clock.now(),
        }
        return [rows.dead_letter(row) for row in (yield CustomPlan(self._statements["dead"], values))]

    def summarize_dead(self, which: DeadFilter, *, limit: int) -> Verb[DeadSummary]:
        """See `Inspection.summarize_dead`."""
        values = {**filter_values(which), "limit": limit, "now": self._clock.now()}
        found = yield CustomPlan(self._statements["summarize_dead"], values)
        return DeadSummary(found[0]["total"] if found else 0, tuple(rows.dead_group(row) for row in found))

    def stats(self) -> Verb[dict[str, QueueStats]]:
        """See `Inspection.stats`."""
        found = yield CustomPlan(self._statements["stats"], {"now": self._clock.now()})
        return {row["queue"]: rows.queue_stats(row) for row in found}


def filter_values(which: DeadFilter) -> dict[str, Any]:
    """The filter for dead letters, as parameters."""
    return {
        "queue": which.queue,
        "reason": which.reason,
        "error": which.error,
        "older_than": age(which.older_than),
        "ids": None if which.ids is None else list(which.ids),
    }
