"""Cancelling and rescheduling waiting messages, in a caller's transaction or in one of ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightmail.clock import Clock
from nightmail.stores.mysql.lines import Lines
from nightmail.stores.mysql.moments import EARLIEST, aware, due, now
from nightmail.stores.mysql.ranges import Place, after, within
from nightmail.stores.mysql.text import ALWAYS, Sql, Value, filled, several
from nightmail.stores.mysql.transaction import Session
from nightmail.stores.shared.marks import LEVELS, Range
from nightmail.stores.sql.statements import Statement

AT_ONCE: Final = 1000
"""How many messages one statement removes."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What a cancel removed, and whether that may unblock others of an ordering key."""

    count: int
    frees: bool


NONE: Final = Removed(0, frees=False)


@dataclass(frozen=True, slots=True)
class _Locked:
    """A waiting message that no other session can take now."""

    id: int
    timer_key: bytes | None
    ordering_key: bytes | None
    in_line: int
    """Whether it waits in line for its key, and is not parked."""


class Timers:
    """The statements of cancel, cancel_all and reschedule."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock
        self._lines = Lines(statements)

    async def cancel(self, session: Session, queue: str, timer_id: str, *, sees_all: bool) -> Removed:
        """See `Store.cancel`. `sees_all`: the session sees what others have committed."""
        values: dict[str, Value] = {"queue": queue.encode(), "timer_id": timer_id.encode()}
        bearer = await self._locked_bearer(session, values, sees_all=sees_all)
        if bearer is None:
            return NONE
        await self._let_others_pass(session, queue, [bearer])
        await session.ask(self._filled("remove_timer", {"id": bearer.id}))
        await session.ask(self._filled("close_window", values))
        return Removed(1, frees=bearer.ordering_key is not None)

    async def cancel_all(self, session: Session, queue: str, *, sees_all: bool) -> int:
        """See `Store.cancel_all`. In the caller's transaction."""
        newest = await self.newest(session) if sees_all else None
        removed = 0
        while some := await self.cancel_some(session, queue, newest, sees_all=sees_all):
            removed += some
        return removed

    async def newest(self, session: Session) -> int:
        """The highest id there is now."""
        return int((await session.ask(self._filled("newest", {}))).rows[0][0])

    async def cancel_some(self, session: Session, queue: str, newest: int | None, *, sees_all: bool) -> int:
        """Remove some of the waiting messages of this queue; returns how many, 0 when there are none.

        Up to the newest: otherwise it would never end while others publish. A session that does not see all needs no
        such limit: its locks keep them from publishing into what it has read.
        """
        # Parked rows first, so that they are not unparked one by one.
        for parked in (1, 0):
            for level in LEVELS:
                range_: Range[Place] | None = Range(queue, level)
                while range_ is not None:
                    ids, range_ = await self._waiting_in(session, range_, parked, newest, sees_all=sees_all)
                    if removed := await self._remove(session, queue, ids):
                        return removed
        return 0

    async def reschedule(
        self, session: Session, queue: str, timer_id: str, when: datetime | timedelta, *, sees_all: bool
    ) -> Removed:
        """See `Store.reschedule`; returns whether a message was moved, and what that frees."""
        values: dict[str, Value] = {"queue": queue.encode(), "timer_id": timer_id.encode()}
        bearer = await self._locked_bearer(session, values, sees_all=sees_all)
        if bearer is None:
            return NONE
        await self._let_others_pass(session, queue, [bearer])
        await session.ask(self._filled("reschedule", {"id": bearer.id, "due": due(when, now(self._clock))}))
        return Removed(1, frees=bearer.ordering_key is not None)

    async def _let_others_pass(self, session: Session, queue: str, locked: Iterable[_Locked]) -> None:
        """These leave their lines: unpark those that come after them."""
        keys = [each.ordering_key for each in locked if each.in_line and each.ordering_key is not None]
        await self._lines.bring_back(session, [(queue.encode(), key) for key in keys])

    async def _locked_bearer(
        self, session: Session, values: Mapping[str, Value], *, sees_all: bool
    ) -> _Locked | None:
        """The owner of this timer id, locked, if it waits. A running one is not locked where that can be avoided."""
        found = (await session.ask(self._filled("bearer_id", values))).rows
        for bearer in await self._lock(session, values["queue"], [row[0] for row in found]):
            if bearer.timer_key == values["timer_id"]:
                return bearer
        if found and sees_all:
            return None
        # A snapshot may be older than the owner. Even here: a single transaction may be set to use one.
        by_name = self._filled("waiting_bearer", {**values, "now": now(self._clock)})
        rows = (await session.ask(by_name)).rows
        return _Locked(*rows[0]) if rows else None

    async def _lock(self, session: Session, queue: Value, ids: Sequence[int]) -> list[_Locked]:
        if not ids:
            return []
        values: dict[str, Value] = {"queue": queue, "ids": several(ids), "now": now(self._clock)}
        return [_Locked(*row) for row in (await session.ask(self._filled("lock_waiting", values))).rows]

    async def _waiting_in(
        self, session: Session, range_: Range[Place], parked: int, newest: int | None, *, sees_all: bool
    ) -> tuple[list[int], Range[Place] | None]:
        """The ids of some waiting messages in this range, and where there may be more."""
        values: dict[str, Value] = {
            "queue": range_.queue.encode(),
            "parked": parked,
            "level": range_.level,
            "within": within(range_),
            "until": ALWAYS if newest is None else Sql(f"m.id <= {newest}"),
            "limit": AT_ONCE,
            "now": now(self._clock),
        }
        question = self._filled("waiting_in_queue", values)
        rows = (await session.ask(question if sees_all else f"{question} for update")).rows
        if len(rows) < AT_ONCE:
            return [row[0] for row in rows], None
        last_id, last_due = rows[-1]
        place = (aware(last_due) if isinstance(last_due, datetime) else EARLIEST, last_id)
        return [row[0] for row in rows], after(range_, place)

    async def _remove(self, session: Session, queue: str, ids: Sequence[int]) -> int:
        locked = await self._lock(session, queue.encode(), ids)
        if not locked:
            return 0
        await session.ask(self._filled("remove_these", {"ids": json.dumps([each.id for each in locked])}))
        names = [each.timer_key for each in locked if each.timer_key is not None]
        if names:
            gone = in_hexadecimal((queue.encode(), name) for name in names)
            await session.ask(self._filled("close_windows", {"names": gone, "begun": ALWAYS}))
        await self._let_others_pass(session, queue, locked)
        return len(locked)

    def _filled(self, name: str, values: Mapping[str, Value]) -> Sql:
        return filled(self._statements[name], values)


def in_hexadecimal(names: Iterable[tuple[bytes, bytes]]) -> str:
    """Queues and timer ids as a list that the server can read: they may be bytes that are not text."""
    return json.dumps([[queue.hex(), timer_id.hex()] for queue, timer_id in names])
