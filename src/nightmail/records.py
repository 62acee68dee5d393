"""What an operator sees of a store, without taking anything from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from nightmail.message import decode_headers


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMessage:
    """A message that waits: not running, not superseded."""

    id: int
    queue: str
    timer_id: str | None
    ordering_key: str | None
    priority: int
    due_at: datetime
    published_at: datetime
    expires_at: datetime | None
    attempts: int
    body: bytes = field(repr=False)
    encoded_headers: str = field(repr=False)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, decoded at each access."""
        return decode_headers(self.encoded_headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was given up, and why."""

    id: int
    """The dead letter's own id: the same message or timer id may die many times."""
    message_id: int
    queue: str
    reason: str
    error: str | None = field(repr=False)
    timer_id: str | None
    ordering_key: str | None
    priority: int
    attempts: int
    deliveries: int
    published_at: datetime
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    died_at: datetime
    body: bytes = field(repr=False)
    encoded_headers: str = field(repr=False)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, decoded at each access."""
        return decode_headers(self.encoded_headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFilter:
    """Selects the dead letters that match every given condition."""

    queue: str | None = None
    reason: str | None = None
    error: str | None = None
    """Text that the error contains."""
    older_than: timedelta | None = None
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep deleted: how many of each."""

    delivered: int = 0
    dead: int = 0
    dedup: int = 0
    """Timer ids whose dedup window has ended."""

    def __add__(self, other: Swept) -> Swept:
        return Swept(self.delivered + other.delivered, self.dead + other.dead, self.dedup + other.dedup)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The current statistics of one queue."""

    ready: int = 0
    """Due, and not leased."""
    scheduled: int = 0
    """Due later."""
    running: int = 0
    """Leased, and the lease has not expired."""
    superseded: int = 0
    """Superseded while they ran and not yet gone; in none of the counts above."""
    dead: int = 0
    oldest_due_age: timedelta | None = None
    """For how long the oldest ready message has been due."""
