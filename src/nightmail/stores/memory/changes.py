"""What one transaction changes, and how to take it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from nightmail.message import Delivery, Message
from nightmail.outcome import Dead
from nightmail.records import DeadLetter
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.rows import Delivered, Row
from nightmail.stores.memory.tables import Tables

HORIZON: Final = timedelta(seconds=60)
"""How soon a message must be due for a write to wake anybody: later ones are found by looking."""


class Changes:
    """Every write of a transaction goes through here.

    A row it touched counts as locked: nobody else changes it before the transaction ends. So putting back what
    the row was cannot overwrite what others did.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.before: dict[tuple[str, int], Row | None] = {}
        """The locked rows as they were, `None` for a new one: what others see until this is committed."""
        self._windows: dict[tuple[str, str], datetime | None] = {}
        self._dead: list[DeadLetter] = []
        self._delivered: list[Delivered] = []
        self._to_ring: set[str] = set()

    def leased(self, delivery: Delivery) -> Row | None:
        """The row of this delivery, if the lease on it is still this one."""
        row = self.queue(delivery.queue).rows.get(delivery.id)
        return row if row is not None and row.token == delivery.token else None

    def queue(self, name: str) -> Queue:
        """The queue of this name."""
        return self._tables.queue(name)

    def touch(self, row: Row) -> None:
        """Lock this row as it is."""
        if (row.queue, row.id) not in self.before:
            self.before[row.queue, row.id] = row.copy()

    def add(self, message: Message, now: datetime) -> Row:
        """Store this message as a new row."""
        row = Row.of(message, next(self._tables.message_ids), now)
        self.before[row.queue, row.id] = None
        queue = self.queue(row.queue)
        # So that a message due now is ready at once, and a claim need not move a whole backlog.
        queue.look(now)
        queue.add(row)
        self.ring_if_soon(row, now)
        return row

    @contextmanager
    def editing(self, row: Row, now: datetime) -> Iterator[None]:
        """Change this row within the block."""
        self.touch(row)
        queue, held_key = self.queue(row.queue), row.head_key
        queue.remove(row)
        try:
            yield
        finally:
            queue.add(row)
        if held_key != row.head_key:
            self._ring_if_offered(queue, held_key, now)

    def remove(self, row: Row, now: datetime) -> None:
        """Remove this row."""
        self.touch(row)
        queue = self.queue(row.queue)
        queue.remove(row)
        self._ring_if_offered(queue, row.head_key, now)

    def open_window(self, queue: str, timer_id: str, until: datetime, now: datetime) -> None:
        """Let this timer id count as taken until then; never for a shorter time than it already does."""
        windows = self.queue(queue).windows
        windows.drop_until(now)
        before = windows.moment(timer_id)
        self._windows.setdefault((queue, timer_id), before)
        windows.put(timer_id, until if before is None else max(before, until))

    def close_window(self, queue: str, timer_id: str) -> None:
        """Let this timer id count as taken only while somebody bears it."""
        windows = self.queue(queue).windows
        self._windows.setdefault((queue, timer_id), windows.moment(timer_id))
        windows.drop(timer_id)

    def bury(self, row: Row, why: Dead, now: datetime) -> None:
        """Move this row to the dead letters."""
        self._dead.append(row.copy().dead_letter(next(self._tables.letter_ids), why, now))
        self.remove(row, now)

    def remember_delivered(self, row: Row, now: datetime) -> None:
        """Write this row into the delivered history."""
        self._delivered.append(row.delivered(now))

    def ring_if_soon(self, row: Row, now: datetime) -> None:
        """Wake those who listen, once this is committed, if the row is due soon."""
        if row.due_at - now < HORIZON:
            self._to_ring.add(row.queue)

    def commit(self) -> None:
        """Let it stand, and wake those whom it concerns."""
        self._tables.dead.update((letter.id, letter) for letter in self._dead)
        self._tables.delivered.extend(self._delivered)
        for queue in self._to_ring:
            self._tables.ring(queue)

    def roll_back(self) -> None:
        """Put everything back."""
        # All out before any is back: a name may have moved from one of these rows to another.
        for name, id_ in self.before:
            if row := self.queue(name).rows.get(id_):
                self.queue(name).remove(row)
        for (name, _), before in self.before.items():
            if before is not None:
                self.queue(name).add(before)
        for (name, timer_id), until in self._windows.items():
            if until is None:
                self.queue(name).windows.drop(timer_id)
            else:
                self.queue(name).windows.put(timer_id, until)

    def _ring_if_offered(self, queue: Queue, key: str | None, now: datetime) -> None:
        """Letting go of an ordering key makes the next in line available."""
        if key is not None:
            queue.look(now)
            if queue.offers(key):
                self._to_ring.add(queue.name)
