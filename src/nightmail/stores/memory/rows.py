"""One message as the memory store keeps it, and what is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from nightmail.message import Delivery, Message
from nightmail.outcome import Dead
from nightmail.records import DeadLetter, PendingMessage, StoredMessage
from nightmail.stores.memory.times import after, due_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A delivered message, for a store that keeps them."""

    id: int
    queue: str
    timer_id: str | None
    ordering_key: str | None
    priority: int
    attempts: int
    published_at: datetime
    delivered_at: datetime
    body: bytes = field(repr=False)
    encoded_headers: str = field(repr=False)


@dataclass(kw_only=True)
class Row:
    """A message and its lease. `token`, `lease_until` and `claimed_at` are all set or none is.

    Without slots: every change in a transaction copies a row, and copying a `__dict__` is ten times faster.
    """

    id: int
    queue: str
    body: bytes
    encoded_headers: str
    timer_id: str | None
    timer_key: str | None
    """The timer id while this row owns it."""
    ordering_key: str | None
    head_key: str | None = None
    """The ordering key while this row holds it: from its first claim until it is gone."""
    priority: int
    due_at: datetime
    published_at: datetime
    expires_at: datetime | None
    attempts: int = 0
    deliveries: int = 0
    first_attempt_at: datetime | None = None
    last_attempt_at: datetime | None = None
    token: UUID | None = None
    lease_until: datetime | None = None
    claimed_at: datetime | None = None
    superseded: bool = False
    stop_requested_by: str | None = None
    last_error: str | None = None

    @classmethod
    def of(cls, message: Message, id_: int, now: datetime) -> Row:
        """A new row for this message."""
        return cls(
            id=id_,
            queue=message.queue,
            body=message.body,
            encoded_headers=message.encoded_headers,
            timer_id=message.timer_id,
            timer_key=message.timer_id,
            ordering_key=message.ordering_key,
            priority=message.priority,
            due_at=due_time(message.due, now),
            published_at=now,
            expires_at=None if message.expires_in is None else after(now, message.expires_in),
        )

    @classmethod
    def redriven(
        cls,
        letter: DeadLetter,
        *,
        id_: int,
        queue: str,
        timer_id: str | None,
        encoded_headers: str,
        now: datetime,
    ) -> Row:
        """A new row for the message that this dead letter becomes."""
        return cls(
            id=id_,
            queue=queue,
            body=letter.body,
            encoded_headers=encoded_headers,
            timer_id=timer_id,
            timer_key=timer_id,
            ordering_key=letter.ordering_key,
            priority=letter.priority,
            due_at=now,
            published_at=now,
            expires_at=None,
        )

    @property
    def size(self) -> int:
        """How many bytes it takes to read it."""
        return len(self.body) + len(self.encoded_headers)

    def copy(self) -> Row:
        """This row as it is now."""
        twin = object.__new__(Row)
        twin.__dict__.update(self.__dict__)
        return twin

    def overwrite(self, message: Message, now: datetime) -> None:
        """Become this message, keeping the place."""
        self.body = message.body
        self.encoded_headers = message.encoded_headers
        self.priority = message.priority
        self.due_at = due_time(message.due, now)
        self.published_at = now
        self.expires_at = None if message.expires_in is None else after(now, message.expires_in)
        if message.ordering_key != self.ordering_key:
            # The place was in a line, and this is another line.
            self.head_key = None
        self.ordering_key = message.ordering_key
        self.stop_requested_by = None
        self.start_afresh()
        self.end_lease()

    def count_attempt(self) -> None:
        """Count a failed run, and remember when it was claimed."""
        self.attempts += 1
        self.first_attempt_at = self.first_attempt_at or self.claimed_at
        self.last_attempt_at = self.claimed_at

    def start_afresh(self) -> None:
        """Reset the counters."""
        self.attempts = self.deliveries = 0
        self.first_attempt_at = self.last_attempt_at = self.last_error = None

    def lease(self, token: UUID, until: datetime, now: datetime) -> None:
        """Set the lease, and hold the ordering key from now on."""
        self.token, self.lease_until, self.claimed_at = token, until, now
        self.head_key = self.ordering_key
        self.deliveries += 1

    def end_lease(self) -> None:
        """Clear the lease."""
        self.token = self.lease_until = self.claimed_at = None

    def running(self, now: datetime) -> bool:
        """Whether a lease on it has not expired; otherwise it waits."""
        return self.lease_until is not None and self.lease_until > now

    def delivery(self) -> Delivery:
        """The message as delivered to its holder."""
        if self.token is None or self.claimed_at is None:
            raise ValueError(f"message {self.id} is not leased")
        return Delivery(
            id=self.id,
            token=self.token,
            queue=self.queue,
            body=self.body,
            encoded_headers=self.encoded_headers,
            timer_id=self.timer_id,
            ordering_key=self.ordering_key,
            priority=self.priority,
            due_at=self.due_at,
            published_at=self.published_at,
            claimed_at=self.claimed_at,
            expires_at=self.expires_at,
            attempts=self.attempts,
            deliveries=self.deliveries,
            first_attempt_at=self.first_attempt_at,
            last_attempt_at=self.last_attempt_at,
            superseded=self.superseded,
        )

    def pending(self) -> PendingMessage:
        """The message as an operator sees it while it waits."""
        return PendingMessage(
            id=self.id,
            queue=self.queue,
            timer_id=self.timer_id,
            ordering_key=self.ordering_key,
            priority=self.priority,
            due_at=self.due_at,
            published_at=self.published_at,
            expires_at=self.expires_at,
            attempts=self.attempts,
            body=self.body,
            encoded_headers=self.encoded_headers,
        )

    def stored(self, now: datetime) -> StoredMessage:
        """The message as an operator sees it, waiting or running."""
        return StoredMessage(
            id=self.id,
            queue=self.queue,
            timer_id=self.timer_id,
            ordering_key=self.ordering_key,
            priority=self.priority,
            due_at=self.due_at,
            published_at=self.published_at,
            expires_at=self.expires_at,
            attempts=self.attempts,
            body=self.body,
            encoded_headers=self.encoded_headers,
            deliveries=self.deliveries,
            superseded=self.superseded,
            claimed_at=self.claimed_at,
            lease_until=self.lease_until,
            running=self.running(now),
            first_attempt_at=self.first_attempt_at,
            last_attempt_at=self.last_attempt_at,
            last_error=self.last_error,
        )

    def delivered(self, now: datetime) -> Delivered:
        """The message as the history keeps it."""
        return Delivered(
            id=self.id,
            queue=self.queue,
            timer_id=self.timer_id,
            ordering_key=self.ordering_key,
            priority=self.priority,
            attempts=self.attempts,
            published_at=self.published_at,
            delivered_at=now,
            body=self.body,
            encoded_headers=self.encoded_headers,
        )

    def dead_letter(self, id_: int, why: Dead, now: datetime) -> DeadLetter:
        """The message as it was given up."""
        if why.ran:
            self.count_attempt()
        return DeadLetter(
            id=id_,
            message_id=self.id,
            queue=self.queue,
            reason=why.reason,
            error=why.error,
            timer_id=self.timer_id,
            ordering_key=self.ordering_key,
            priority=self.priority,
            attempts=self.attempts,
            deliveries=self.deliveries,
            published_at=self.published_at,
            first_attempt_at=self.first_attempt_at,
            last_attempt_at=self.last_attempt_at,
            died_at=now,
            body=self.body,
            encoded_headers=self.encoded_headers,
        )
