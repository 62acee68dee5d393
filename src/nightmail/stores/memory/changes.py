"""What one transaction changes, and how to roll it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from nightmail.message import Delivery, Message
from nightmail.outcome import Dead
from nightmail.stores.memory.letters import Letter
from nightmail.stores.memory.queue import Queue
from nightmail.stores.memory.rows import Delivered, Row
from nightmail.stores.memory.tables import Tables

HORIZON: Final = timedelta(seconds=60)
"""How soon a message must be due for a write to wake workers: later ones are found by polling."""


class Changes:
    """Every write of a transaction goes through here.

    A row it touched counts as locked: nothing else changes it before the transaction ends. So restoring the row
    cannot overwrite what others did.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.before: dict[tuple[str, int], Row | None] = {}
        """The locked rows as they were, `None` for a new one: what others see until the commit."""
        self._windows: dict[tuple[str, str], datetime | None] = {}
        self.locked_letters: set[int] = set()
        self._new_letters: list[Letter] = []
        # Deleted at commit: until then others see the dead letter as it is, and a rollback has nothing to do.
        self._letters_to_remove: dict[int, Letter] = {}
        self._delivered: list[Delivered] = []
        self._to_ring: set[str] = set()

    def leased(self, delivery: Delivery) -> Row | None:
        """The row of this delivery, if the lease on it is still this one."""
        row = self.queue(delivery.queue).rows.get(delivery.id)
        return row if row is not None and row.token == delivery.token else None

    def leased_letter(self, delivery: Delivery) -> Letter | None:
        """The dead letter of this delivery, if the lease on it is still this one."""
        letter = self.letter(delivery.queue, delivery.id)
        return letter if letter is not None and letter.token == delivery.token else None

    def letter(self, queue: str, id_: int) -> Letter | None:
        """The dead letter of this id, unless it was removed."""
        return None if id_ in self._letters_to_remove else self.queue(queue).letters.by_id.get(id_)

    def queue(self, name: str) -> Queue:
        """The queue of this name."""
        return self._tables.queue(name)

    def touch(self, row: Row) -> None:
        """Lock this row as it is."""
        if (row.queue, row.id) not in self.before:
            self.before[row.queue, row.id] = row.copy()

    def add(self, message: Message, now: datetime) -> Row:
        """Store this message as a new row."""
        row = Row.of(message, self.new_id(), now)
        self.store(row, now)
        return row

    def new_id(self) -> int:
        """The id of the next message."""
        return next(self._tables.message_ids)

    def store(self, row: Row, now: datetime) -> None:
        """Store this new row."""
        self.before[row.queue, row.id] = None
        queue = self.queue(row.queue)
        # So that a message due now is ready at once, and a claim need not move a whole backlog.
        queue.look(now)
        queue.add(row)
        self.ring_if_soon(row.queue, row.due_at, now)

    @contextmanager
    def editing(self, row: Row) -> Iterator[None]:
        """Change this row within the block."""
        self.touch(row)
        queue, before = self.queue(row.queue), row.copy()
        queue.remove(row)
        try:
            yield
        finally:
            queue.add(row)
        if _frees_key(before, row):
            self._to_ring.add(queue.name)

    def remove(self, row: Row) -> None:
        """Remove this row."""
        self.touch(row)
        queue = self.queue(row.queue)
        queue.remove(row)
        if row.ordering_key is not None:
            self._to_ring.add(queue.name)

    def open_window(self, queue: str, timer_id: str, until: datetime, now: datetime) -> None:
        """Let this timer id count as taken until then; never shortens an open window."""
        windows = self.queue(queue).windows
        windows.drop_until(now)
        before = windows.time(timer_id)
        self._windows.setdefault((queue, timer_id), before)
        windows.put(timer_id, until if before is None else max(before, until))

    def close_window(self, queue: str, timer_id: str) -> None:
        """Let this timer id count as taken only while a message owns it."""
        windows = self.queue(queue).windows
        self._windows.setdefault((queue, timer_id), windows.time(timer_id))
        windows.drop(timer_id)

    def bury(self, row: Row, why: Dead, now: datetime, *, given_up: bool = False) -> None:
        """Move this row to the dead letters; one that is given up is not offered by `claim_dead`."""
        record = row.copy().dead_letter(next(self._tables.letter_ids), why, now)
        self._new_letters.append(Letter(record=record, due_at=None if given_up else now))
        self._to_ring.add(row.queue)
        self.remove(row)

    def touch_letter(self, letter: Letter) -> None:
        """Lock this dead letter."""
        self.locked_letters.add(letter.id)

    def remove_letter(self, letter: Letter) -> None:
        """Remove this dead letter."""
        self.touch_letter(letter)
        self._letters_to_remove[letter.id] = letter

    def remember_delivered(self, row: Row, now: datetime) -> None:
        """Write this row into the delivered history."""
        self._delivered.append(row.delivered(now))

    def ring_if_soon(self, queue: str, due_at: datetime, now: datetime) -> None:
        """Wake this queue's listeners at commit, if the message is due soon."""
        if due_at - now < HORIZON:
            self._to_ring.add(queue)

    def commit(self) -> None:
        """Commit, and wake the listeners concerned."""
        for letter in self._letters_to_remove.values():
            self.queue(letter.queue).letters.remove(letter)
        for letter in self._new_letters:
            self.queue(letter.queue).letters.add(letter)
        self._tables.delivered.extend(self._delivered)
        for queue in self._to_ring:
            self._tables.ring(queue)

    def roll_back(self) -> None:
        """Put everything back."""
        # Remove all before restoring any: a timer id may have moved from one of these rows to another.
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


def _frees_key(before: Row, after: Row) -> bool:
    """Whether another message of this row's former ordering key may run now, even one that is about to commit."""
    if before.ordering_key is None or after.head_key is not None:
        return False
    return (
        before.head_key is not None
        or before.ordering_key != after.ordering_key
        or before.due_at < after.due_at
    )
