"""Cancelling and rescheduling waiting messages, in a caller's transaction or in one of ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nightmail.clock import Clock
from nightmail.message import Due
from nightmail.stores.mysql.lines import Lines
from nightmail.stores.mysql.ranges import Place, after, within
from nightmail.stores.mysql.requests import CHECK_TABLES, Answer, Sees
from nightmail.stores.mysql.text import ALWAYS, Queries, Sql, several
from nightmail.stores.mysql.times import EARLIEST, aware, due, is_soon, now
from nightmail.stores.shared.marks import LEVELS, Range
from nightmail.stores.sql.verbs import Change, Verb

AT_ONCE: Final = 1000
"""How many messages one statement removes."""


@dataclass(frozen=True, slots=True)
class _Locked:
    """A waiting message that no other session can take now."""

    id: int
    timer_key: bytes | None
    ordering_key: bytes | None
    in_line: int
    """Whether it waits in line for its key, and is not parked."""


class Timers:
    """The verbs cancel, cancel_all and reschedule."""

    def __init__(self, sql: Queries, clock: Clock) -> None:
        self._sql = sql
        self._clock = clock
        self._lines = Lines(sql)

    def cancel(self, queue: str, timer_id: str) -> Verb[Change[bool]]:
        """See `Store.cancel`."""
        owner = yield from self._locked_owner(queue, timer_id)
        if owner is None:
            return Change(False)
        yield from self._let_others_pass(queue, [owner])
        yield self._sql("cancel", id=owner.id)
        yield self._sql("close_window", queue=queue.encode(), timer_id=timer_id.encode())
        frees = owner.ordering_key is not None
        return Change(True, frozenset({queue} if frees else ()))

    def cancel_all(
        self, queue: str, *, limit: int | None = None, newest: int | None = None
    ) -> Verb[Change[int]]:
        """See `Store.cancel_all`. In one transaction."""
        sees: Sees = yield CHECK_TABLES
        if newest is None and sees is not Sees.SNAPSHOT:
            newest = yield from self.newest()
        removed = 0
        while room := AT_ONCE if limit is None else min(AT_ONCE, limit - removed):
            some = yield from self._cancel_some(queue, newest, sees, room)
            if not some:
                break
            removed += some
        return Change(removed, frozenset({queue} if removed else ()))

    def newest(self) -> Verb[int]:
        """The highest id there is now."""
        return int((yield self._sql("newest")).rows[0][0])

    def _cancel_some(self, queue: str, newest: int | None, sees: Sees, limit: int) -> Verb[int]:
        """Remove some of the waiting messages of this queue; returns how many, 0 when there are none.

        Up to the newest: otherwise it would never end while others publish. A session with a snapshot needs no such
        limit: its locks keep them from publishing into what it has read.
        """
        # Parked rows first, so that they are not unparked one by one.
        for parked in (1, 0):
            for level in LEVELS:
                range_: Range[Place] | None = Range(queue, level)
                while range_ is not None:
                    ids, range_ = yield from self._waiting_in(range_, parked, newest, sees, limit)
                    if removed := (yield from self._remove(queue, ids)):
                        return removed
        return 0

    def reschedule(self, queue: str, timer_id: str, when: Due) -> Verb[Change[bool]]:
        """See `Store.reschedule`."""
        owner = yield from self._locked_owner(queue, timer_id)
        if owner is None:
            return Change(False)
        yield from self._let_others_pass(queue, [owner])
        yield self._sql("reschedule", id=owner.id, due=due(when, now(self._clock)))
        rings = owner.ordering_key is not None or is_soon(when, self._clock)
        return Change(True, frozenset({queue} if rings else ()))

    def _let_others_pass(self, queue: str, locked: Iterable[_Locked]) -> Verb[None]:
        """These leave their lines: unpark those that come after them."""
        keys = [each.ordering_key for each in locked if each.in_line and each.ordering_key is not None]
        yield from self._lines.bring_back([(queue.encode(), key) for key in keys])

    def _locked_owner(self, queue: str, timer_id: str) -> Verb[_Locked | None]:
        """The owner of this timer id, locked, if it waits. A running one is not locked where that can be avoided."""
        sees: Sees = yield CHECK_TABLES
        key = timer_id.encode()
        found = (yield self._sql("owner_id", queue=queue.encode(), timer_id=key)).rows
        for owner in (yield from self._lock(queue, [row[0] for row in found])):
            if owner.timer_key == key:
                return owner
        if found and sees is not Sees.SNAPSHOT:
            return None
        # A snapshot may be older than the owner. Even here: a single transaction may be set to use one.
        rows = (
            yield self._sql("waiting_owner", queue=queue.encode(), timer_id=key, now=now(self._clock))
        ).rows
        return _Locked(*rows[0]) if rows else None

    def _lock(self, queue: str, ids: Sequence[int]) -> Verb[list[_Locked]]:
        if not ids:
            return []
        found: Answer = yield self._sql(
            "lock_waiting", queue=queue.encode(), ids=several(ids), now=now(self._clock)
        )
        return [_Locked(*row) for row in found.rows]

    def _waiting_in(
        self, range_: Range[Place], parked: int, newest: int | None, sees: Sees, limit: int
    ) -> Verb[tuple[list[int], Range[Place] | None]]:
        """The ids of some waiting messages in this range, and where there may be more."""
        question = self._sql(
            "waiting_in_queue",
            queue=range_.queue.encode(),
            parked=parked,
            level=range_.level,
            within=within(range_),
            until=ALWAYS if newest is None else Sql(f"m.id <= {newest}"),
            limit=limit,
            now=now(self._clock),
        )
        rows = (yield f"{question} for update" if sees is Sees.SNAPSHOT else question).rows
        if len(rows) < limit:
            return [row[0] for row in rows], None
        last_id, last_due = rows[-1]
        place = (aware(last_due) if isinstance(last_due, datetime) else EARLIEST, last_id)
        return [row[0] for row in rows], after(range_, place)

    def _remove(self, queue: str, ids: Sequence[int]) -> Verb[int]:
        locked = yield from self._lock(queue, ids)
        if not locked:
            return 0
        yield self._sql("cancel_all", ids=json.dumps([each.id for each in locked]))
        gone = [(queue.encode(), each.timer_key) for each in locked if each.timer_key is not None]
        if gone:
            yield self._sql("close_windows", timers=in_hexadecimal(gone), begun=ALWAYS)
        yield from self._let_others_pass(queue, locked)
        return len(locked)


def in_hexadecimal(timers: Iterable[tuple[bytes, bytes]]) -> str:
    """Queues and timer ids as a list that the server can read: they may be bytes that are not text."""
    return json.dumps([[queue.hex(), timer_id.hex()] for queue, timer_id in timers])
