"""One queue: its rows, their timer ids, and which row is next.

A row is in exactly one of these places:

    scheduled   no lease, and due later
    running     leased; it stays here until `look` finds the lease expired
    ready       due and unleased, by priority: what a claim takes from
    a line      due and unleased, with an ordering key; the line offers at most one of its rows to `ready`

Time moves rows from the first two to the last two, and only when `look` is called: each row once, so that the cost
of a claim depends on what it takes, not on the size of the queue. A row is changed by removing it, changing it, and
adding it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final
from uuid import UUID

from nightmail.message import PRIORITIES
from nightmail.stores.memory.admission import Admission
from nightmail.stores.memory.agenda import Agenda
from nightmail.stores.memory.letters import Letters
from nightmail.stores.memory.rows import Row
from nightmail.stores.memory.times import BEGINNING

_HIGHEST_FIRST: Final = tuple(reversed(PRIORITIES))


class Line:
    """The due rows of one ordering key, in order of their ids, and the row that holds the key."""

    __slots__ = ("due", "head", "offered", "paused")

    def __init__(self, *, paused: bool) -> None:
        self.due: Agenda[int, int] = Agenda()
        self.head: int | None = None
        self.offered: Row | None = None
        self.paused = paused

    @property
    def empty(self) -> bool:
        """Whether no row is in line and none holds the key."""
        return self.head is None and not self.due

    @property
    def next(self) -> int | None:
        """The id of the row that may be claimed: the head if there is one, and `None` while the head is not due."""
        if self.paused:
            return None
        if self.head is not None:
            return self.head if self.head in self.due else None
        first = self.due.first()
        return None if first is None else first[1]


class Queue:
    """The messages of one queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[int, Row] = {}
        self.windows: Agenda[datetime, str] = Agenda()
        """Until when a timer id counts as taken, even if no row owns it."""
        self.letters = Letters()
        self._names: dict[str, int] = {}
        self._paused_keys: frozenset[str] = frozenset()
        self._clear_places()

    def _clear_places(self) -> None:
        self._scheduled: Agenda[datetime, int] = Agenda()
        self._running: Agenda[datetime, int] = Agenda()
        self._ready: dict[int, Agenda[datetime, int]] = {priority: Agenda() for priority in PRIORITIES}
        self._lines: dict[str, Line] = {}
        self._looked_at = BEGINNING

    def owner_of(self, timer_id: str) -> Row | None:
        """The row that owns this timer id."""
        id_ = self._names.get(timer_id)
        return None if id_ is None else self.rows[id_]

    def add(self, row: Row) -> None:
        """Add this row."""
        self.rows[row.id] = row
        if row.timer_key is not None:
            self._names[row.timer_key] = row.id
        self._place(row)

    def remove(self, row: Row) -> None:
        """Remove this row, and release its timer id and its ordering key."""
        self._lift(row)
        del self.rows[row.id]
        if row.timer_key is not None:
            del self._names[row.timer_key]

    def pause_keys(self, keys: frozenset[str]) -> None:
        """Offer nothing of these ordering keys, and of no others."""
        changed, self._paused_keys = keys ^ self._paused_keys, keys
        for key in changed:
            if line := self._lines.get(key):
                line.paused = key in keys
                self._offer(line)

    def look(self, now: datetime) -> None:
        """Make ready what has become available by now."""
        if now < self._looked_at:
            self._start_over()
        self._looked_at = now
        for id_ in self._running.take_until(now):
            self._place_unleased(self.rows[id_])
        for id_ in self._scheduled.take_until(now):
            self._place_unleased(self.rows[id_])

    def claim(
        self, limit: int, *, oldest: int, admission: Admission, token: UUID, until: datetime, now: datetime
    ) -> Iterator[Row]:
        """Lease up to `limit` available rows: first the share of the oldest, the others by priority."""
        self.look(now)
        for taken in range(limit):
            pick = self._oldest if taken < oldest else self._most_urgent
            row = pick()
            while row is not None and admission.bury_if_too_large(row):
                row = pick()
            if row is None or not admission.budget.take(row.size):
                return
            self._lift(row)
            row.lease(token, until, now)
            self._place(row)
            yield row

    def before(self, row: Row, now: datetime) -> Row | None:
        """The row of the same ordering key that goes before this one: the one that holds the key, or the first due."""
        line = None if row.ordering_key is None else self._lines.get(row.ordering_key)
        if line is None:
            return None
        self.look(now)
        first = line.due.first()
        id_ = line.head if line.head is not None else None if first is None else first[1]
        return None if id_ is None or id_ == row.id else self.rows[id_]

    def first_ready(self, now: datetime) -> Row | None:
        """The oldest row that could be claimed now."""
        self.look(now)
        return self._oldest()

    def next_time(self) -> datetime | None:
        """When the next row is due or the next lease expires."""
        times = [first[0] for agenda in (self._scheduled, self._running) if (first := agenda.first())]
        return min(times, default=None)

    def _oldest(self) -> Row | None:
        firsts = [first for agenda in self._ready.values() if (first := agenda.first())]
        return self.rows[min(firsts)[1]] if firsts else None

    def _most_urgent(self) -> Row | None:
        for priority in _HIGHEST_FIRST:
            if first := self._ready[priority].first():
                return self.rows[first[1]]
        return None

    def _start_over(self) -> None:
        """The clock was set back: what was due or expired may no longer be."""
        self._clear_places()
        for row in self.rows.values():
            self._place(row)

    def _place(self, row: Row) -> None:
        if row.head_key is not None:
            line = self._line(row.head_key)
            line.head = row.id
            self._offer(line)
        if row.lease_until is not None:
            self._running.put(row.id, row.lease_until)
        else:
            self._place_unleased(row)

    def _place_unleased(self, row: Row) -> None:
        if row.due_at > self._looked_at:
            self._scheduled.put(row.id, row.due_at)
        elif row.ordering_key is None:
            self._ready[row.priority].put(row.id, row.due_at)
        else:
            line = self._line(row.ordering_key)
            line.due.put(row.id, row.id)
            self._offer(line)

    def _lift(self, row: Row) -> None:
        self._scheduled.drop(row.id)
        self._running.drop(row.id)
        if row.ordering_key is None:
            self._ready[row.priority].drop(row.id)
        elif line := self._lines.get(row.ordering_key):
            line.due.drop(row.id)
            if line.head == row.id:
                line.head = None
            self._offer(line)
            if line.empty:
                del self._lines[row.ordering_key]

    def _line(self, key: str) -> Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(paused=key in self._paused_keys)
        return line

    def _offer(self, line: Line) -> None:
        """Make the line's next row, and no other of its rows, ready."""
        id_ = line.next
        if line.offered is not None:
            if line.offered.id == id_:
                return
            self._ready[line.offered.priority].drop(line.offered.id)
        line.offered = None if id_ is None else self.rows[id_]
        if line.offered is not None:
            self._ready[line.offered.priority].put(line.offered.id, line.offered.due_at)
