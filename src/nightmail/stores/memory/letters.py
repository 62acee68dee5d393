"""The dead letters of one queue, and which of them may be claimed next.

A dead letter is in at most one of two places: `coming`, until it is due or its lease expires, and `ready`. One that was
given up is in neither. As with messages, time moves a dead letter only when `look` is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from uuid import UUID

from nightmail.limits import ByteBudget
from nightmail.message import DeadDelivery
from nightmail.records import DeadLetter
from nightmail.stores.memory.agenda import Agenda
from nightmail.stores.memory.times import BEGINNING


@dataclass(kw_only=True)
class Letter:
    """A dead letter and its lease. `token`, `lease_until` and `claimed_at` are all set or none is."""

    record: DeadLetter
    due_at: datetime | None
    """Since when it may be claimed; `None` once it was given up."""
    attempts: int = 0
    deliveries: int = 0
    token: UUID | None = None
    lease_until: datetime | None = None
    claimed_at: datetime | None = None

    @property
    def id(self) -> int:
        """The dead letter's own id."""
        return self.record.id

    @property
    def size(self) -> int:
        """How many bytes it takes to read it."""
        return len(self.record.body) + len(self.record.encoded_headers)

    @property
    def queue(self) -> str:
        """Where the message died."""
        return self.record.queue

    def held(self, now: datetime) -> bool:
        """Whether a lease on it has not expired."""
        return self.lease_until is not None and self.lease_until > now

    def count_attempt(self) -> None:
        """Count a failed run. The message's own attempt times stay as they are."""
        self.attempts += 1

    def start_afresh(self) -> None:
        """Reset the counters."""
        self.attempts = self.deliveries = 0

    def lease(self, token: UUID, until: datetime, now: datetime) -> None:
        """Set the lease."""
        self.token, self.lease_until, self.claimed_at = token, until, now
        self.deliveries += 1

    def end_lease(self) -> None:
        """Clear the lease."""
        self.token = self.lease_until = self.claimed_at = None

    def delivery(self) -> DeadDelivery:
        """The dead letter as delivered to its holder."""
        if self.token is None or self.claimed_at is None or self.due_at is None:
            raise ValueError(f"dead letter {self.id} is not leased")
        record = self.record
        return DeadDelivery(
            id=record.id,
            token=self.token,
            queue=record.queue,
            body=record.body,
            encoded_headers=record.encoded_headers,
            timer_id=record.timer_id,
            ordering_key=record.ordering_key,
            priority=record.priority,
            due_at=self.due_at,
            published_at=record.published_at,
            claimed_at=self.claimed_at,
            expires_at=None,
            attempts=self.attempts,
            deliveries=self.deliveries,
            first_attempt_at=record.first_attempt_at,
            last_attempt_at=record.last_attempt_at,
            superseded=False,
            message_id=record.message_id,
            reason=record.reason,
            error=record.error,
            died_at=record.died_at,
        )


class Letters:
    """The dead letters of one queue."""

    def __init__(self) -> None:
        self.by_id: dict[int, Letter] = {}
        self._clear_places()

    def _clear_places(self) -> None:
        self._coming: Agenda[datetime, int] = Agenda()
        self._ready: Agenda[datetime, int] = Agenda()
        self._looked_at = BEGINNING

    def add(self, letter: Letter) -> None:
        """Add this dead letter."""
        self.by_id[letter.id] = letter
        self._place(letter)

    def remove(self, letter: Letter) -> None:
        """Remove this dead letter."""
        self._coming.drop(letter.id)
        self._ready.drop(letter.id)
        del self.by_id[letter.id]

    @contextmanager
    def editing(self, letter: Letter) -> Iterator[None]:
        """Change this dead letter within the block."""
        self.remove(letter)
        try:
            yield
        finally:
            self.add(letter)

    def look(self, now: datetime) -> None:
        """Make ready what has become available by now."""
        if now < self._looked_at:
            # The clock was set back: what was due or expired may no longer be.
            self._clear_places()
            for letter in self.by_id.values():
                self._place(letter)
        self._looked_at = now
        for id_ in self._coming.take_until(now):
            self._place_unleased(self.by_id[id_])

    def longest_due(self) -> tuple[datetime, int] | None:
        """Since when the next dead letter may be claimed, and its id; as of the last `look`."""
        return self._ready.first()

    def take(self, id_: int, token: UUID, until: datetime, now: datetime) -> Letter:
        """Lease this dead letter."""
        letter = self.by_id[id_]
        with self.editing(letter):
            letter.lease(token, until, now)
        return letter

    def give_up(self, letter: Letter) -> None:
        """Keep this dead letter, and never offer it again."""
        with self.editing(letter):
            letter.end_lease()
            letter.due_at = None

    def next_time(self) -> datetime | None:
        """When the next dead letter is due or the next lease expires."""
        first = self._coming.first()
        return None if first is None else first[0]

    def _place(self, letter: Letter) -> None:
        if letter.lease_until is not None:
            self._coming.put(letter.id, letter.lease_until)
        else:
            self._place_unleased(letter)

    def _place_unleased(self, letter: Letter) -> None:
        if letter.due_at is None:
            return
        if letter.due_at > self._looked_at:
            self._coming.put(letter.id, letter.due_at)
        else:
            self._ready.put(letter.id, letter.due_at)


def take(
    boxes: Sequence[Letters],
    *,
    limit: int,
    budget: ByteBudget,
    max_body_bytes: int,
    token: UUID,
    until: datetime,
    now: datetime,
) -> Iterator[Letter]:
    """Lease up to `limit` dead letters of these queues, as far as the budget allows, longest due first.

    Those with larger bodies are given up.
    """
    for letters in boxes:
        letters.look(now)
    while limit > 0:
        firsts = [(first, letters) for letters in boxes if (first := letters.longest_due())]
        if not firsts:
            return
        (_, id_), letters = min(firsts, key=itemgetter(0))
        letter = letters.by_id[id_]
        if len(letter.record.body) > max_body_bytes:
            letters.give_up(letter)
            continue
        if not budget.take(letter.size):
            return
        limit -= 1
        yield letters.take(id_, token, until, now)
