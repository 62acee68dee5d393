"""Cancelling and moving what waits, in a caller's transaction or in one of ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightmail.clock import Clock
from nightmail.stores._marks import LEVELS, Range
from nightmail.stores._sql import Statement
from nightmail.stores.mysql.moments import aware, due, now
from nightmail.stores.mysql.ranges import Place, within
from nightmail.stores.mysql.text import ALWAYS, Sql, Value, filled, several
from nightmail.stores.mysql.transaction import Session

AT_ONCE: Final = 1000
"""So many messages are removed by one statement."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What a cancel removed, and whether that may let somebody else of an ordering key go on."""

    count: int
    frees: bool


@dataclass(frozen=True, slots=True)
class _Locked:
    """A waiting message that nobody else can take now."""

    id: int
    timer_key: bytes | None
    head_key: bytes | None

    @property
    def holds_key(self) -> bool:
        return self.head_key is not None


class Timers:
    """The statements of cancel, cancel_all and reschedule."""

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock

    async def cancel(self, session: Session, queue: str, timer_id: str, *, sees_all: bool) -> Removed:
        """See `Store.cancel`. `sees_all`: the session sees what others have committed."""
        values: dict[str, Value] = {"queue": queue.encode(), "timer_id": timer_id.encode()}
        bearer = await self._locked_bearer(session, values, sees_all=sees_all)
        if bearer is None:
            return Removed(0, frees=False)
        await session.ask(self._filled("remove_timer", {"id": bearer.id}))
        await session.ask(self._filled("close_window", values))
        return Removed(1, frees=bearer.holds_key)

    async def cancel_all(self, session: Session, queue: str, *, sees_all: bool) -> Removed:
        """See `Store.cancel_all`."""
        removed = 0
        for level in LEVELS:
            range_: Range[Place] | None = Range(queue, level)
            while range_ is not None:
                ids, range_ = await self._waiting_in(session, range_, sees_all=sees_all)
                removed += await self._remove(session, queue, ids)
        return Removed(removed, frees=False)

    async def reschedule(
        self, session: Session, queue: str, timer_id: str, when: datetime | timedelta, *, sees_all: bool
    ) -> bool:
        """See `Store.reschedule`."""
        values: dict[str, Value] = {"queue": queue.encode(), "timer_id": timer_id.encode()}
        bearer = await self._locked_bearer(session, values, sees_all=sees_all)
        if bearer is None:
            return False
        await session.ask(self._filled("reschedule", {"id": bearer.id, "due": due(when, now(self._clock))}))
        return True

    async def _locked_bearer(
        self, session: Session, values: Mapping[str, Value], *, sees_all: bool
    ) -> _Locked | None:
        """Who bears this name, locked, if it waits. One that runs is not locked, where that can be helped."""
        if not sees_all:
            rows = (
                await session.ask(self._filled("waiting_bearer", {**values, "now": now(self._clock)}))
            ).rows
            return _Locked(*rows[0]) if rows else None
        found = (await session.ask(self._filled("bearer_id", values))).rows
        for bearer in await self._lock(session, values["queue"], [row[0] for row in found]):
            if bearer.timer_key == values["timer_id"]:
                return bearer
        return None

    async def _lock(self, session: Session, queue: Value, ids: Sequence[int]) -> list[_Locked]:
        if not ids:
            return []
        values: dict[str, Value] = {"queue": queue, "ids": several(ids), "now": now(self._clock)}
        return [_Locked(*row) for row in (await session.ask(self._filled("lock_waiting", values))).rows]

    async def _waiting_in(
        self, session: Session, range_: Range[Place], *, sees_all: bool
    ) -> tuple[list[int], Range[Place] | None]:
        """The ids of some that wait in this range, and where there may be more."""
        values: dict[str, Value] = {
            "queue": range_.queue.encode(),
            "level": range_.level,
            "within": within(range_),
            "limit": AT_ONCE,
            "now": now(self._clock),
        }
        question = self._filled("waiting_in_queue", values)
        rows = (await session.ask(question if sees_all else f"{question} for update")).rows
        if len(rows) < AT_ONCE:
            return [row[0] for row in rows], None
        last_id, last_due = rows[-1]
        following = Range(range_.queue, range_.level, start=(aware(last_due), last_id + 1))
        return [row[0] for row in rows], following

    async def _remove(self, session: Session, queue: str, ids: Sequence[int]) -> int:
        locked = await self._lock(session, queue.encode(), ids)
        if locked:
            await session.ask(self._filled("remove_these", {"ids": json.dumps([each.id for each in locked])}))
        names = [each.timer_key for each in locked if each.timer_key is not None]
        if names:
            gone = in_hexadecimal((queue.encode(), name) for name in names)
            await session.ask(self._filled("close_windows", {"names": gone, "begun": ALWAYS}))
        return len(locked)

    def _filled(self, name: str, values: Mapping[str, Value]) -> Sql:
        return filled(self._statements[name], values)


def in_hexadecimal(names: Iterable[tuple[bytes, bytes]]) -> str:
    """Queues and timer ids as a list that the server can read: a name may be bytes that are no text."""
    return json.dumps([[queue.hex(), timer_id.hex()] for queue, timer_id in names])
