"""Queries for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from nightmail.clock import Clock
from nightmail.records import DeadFilter, DeadLetter, PendingMessage, QueueStats
from nightmail.stores.postgres import rows
from nightmail.stores.postgres.claiming import MOST_BYTES
from nightmail.stores.postgres.connect import Connection
from nightmail.stores.postgres.moments import EARLIEST, LATEST, age
from nightmail.stores.postgres.transaction import Direct, Session
from nightmail.stores.sql.statements import Statement

# Rare queries with many optional conditions: each is planned for its own arguments.
AS_ASKED: Final = "set local plan_cache_mode to force_custom_plan"
# Read-only queries may scan a whole table.
READING: Final = f"{AS_ASKED}; set local enable_seqscan to on; set local enable_bitmapscan to on"


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
        values = {
            "queue": queue,
            "timer_id": timer_id,
            "due_before": None if due_before is None else min(max(due_before, EARLIEST), LATEST),
            "limit": limit,
            "now": self._clock.now(),
        }
        name = "peek" if timer_id is None else "peek_timer"
        return [rows.pending(row) for row in await session.rows(self._statements[name], values)]

    async def dead(
        self, session: Session, which: DeadFilter, *, limit: int, cursor: int | None, max_bytes: int
    ) -> list[DeadLetter]:
        """See `Inspection.dead`."""
        values = {
            **filter_values(which),
            "cursor": cursor,
            "limit": limit,
            "max_bytes": min(max_bytes, MOST_BYTES),
            "now": self._clock.now(),
        }
        return [rows.dead_letter(row) for row in await session.rows(self._statements["dead"], values)]

    async def stats(self, session: Session) -> dict[str, QueueStats]:
        """See `Inspection.stats`."""
        found = await session.rows(self._statements["stats"], {"now": self._clock.now()})
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


class CustomPlanSession:
    """A session on our own connection that plans every statement for its arguments."""

    def __init__(self, connection: Connection, *, readonly: bool = True) -> None:
        self._connection = connection
        self._readonly = readonly

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        async with self._connection.transaction(readonly=self._readonly):
            await self._connection.execute(READING if self._readonly else AS_ASKED)
            return await Direct(self._connection).rows(statement, values)
