"""Cancelling and moving what waits, in a caller's transaction or in one of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightmail.clock import Clock
from nightmail.stores._sql import Statement
from nightmail.stores.mysql.marks import LEVELS, Range
from nightmail.stores.mysql.moments import aware, due, now
from nightmail.stores.mysql.text import Sql, Value, filled
from nightmail.stores.mysql.transaction import Session

AT_ONCE: Final = 1000
"""So many messages are removed by one statement."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What a cancel removed, and whether that may let somebody else of an ordering key go on."""

    count: int
    frees: bool


class Timers:
    """The statements of cancel, cancel_all and reschedule."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

    async def cancel(self, session: Session, queue: str, timer_id: str) -> Removed:
        """See `Store.cancel`."""
        values: dict[str, Value] = {"queue": queue.encode(), "timer_id": timer_id.encode()}
        found = await self._waiting(session, values)
        if found is None:
            return Removed(0, frees=False)
        id_, head_key = found
        await session.ask(self._filled("remove_timer", {"id": id_}))
        await session.ask(self._filled("close_window", values))
        return Removed(1, frees=head_key is not None)

    async def cancel_all(self, session: Session, queue: str) -> Removed:
        """See `Store.cancel_all`."""
        removed = 0
        for level in LEVELS:
            range_ = Range(queue, level)
            while rows := await self._waiting_in(session, range_):
                await session.ask(self._filled("remove_these", {"ids": [row[0] for row in rows]}))
                names = [row[3] for row in rows if row[3] is not None]
                if names:
                    await session.ask(
                        self._filled("close_windows", {"queue": queue.encode(), "timer_ids": names})
                    )
                removed += len(rows)
                if len(rows) < AT_ONCE:
                    break
                last_id, _, last_due, _ = rows[-1]
                range_ = Range(queue, level, start=(aware(last_due), last_id + 1))
        return Removed(removed, frees=False)

    async def reschedule(
        self, session: Session, queue: str, timer_id: str, when: datetime | timedelta
    ) -> bool:
        """See `Store.reschedule`."""
        values: dict[str, Value] = {"queue": queue.encode(), "timer_id": timer_id.encode()}
        found = await self._waiting(session, values)
        if found is None:
            return False
        await session.ask(self._filled("reschedule", {"id": found[0], "due": due(when, now(self._clock))}))
        return True

    async def _waiting(
        self, session: Session, values: Mapping[str, Value]
    ) -> tuple[int, bytes | None] | None:
        rows = (await session.ask(self._filled("waiting_bearer", {**values, "now": now(self._clock)}))).rows
        return (int(rows[0][0]), rows[0][1]) if rows else None

    async def _waiting_in(
        self, session: Session, range_: Range
    ) -> list[tuple[int, int, datetime, bytes | None]]:
        values: dict[str, Value] = {
            "queue": range_.queue.encode(),
            "level": range_.level,
            "within": range_.within,
            "limit": AT_ONCE,
            "now": now(self._clock),
        }
        return [tuple(row) for row in (await session.ask(self._filled("waiting_in_queue", values))).rows]

    def _filled(self, name: str, values: Mapping[str, Value]) -> Sql:
        return filled(self._statements[name], values)
