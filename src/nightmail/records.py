"""What an operator sees of a store, without taking anything from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from nightmail.message import decode_headers


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMessage:
    """A message that waits: not running, not superseded."""

    id: int
    queue: str
    timer_id: str | None = field(repr=False)
    ordering_key: str | None = field(repr=False)
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
class StoredMessage(PendingMessage):
    """A message as it is stored, whether it waits or runs."""

    deliveries: int
    superseded: bool
    claimed_at: datetime | None
    """When the lease on it, or the last one that expired, was taken; `None` if there is none."""
    lease_until: datetime | None
    """When that lease ends or ended."""
    running: bool
    """Whether that lease has not expired, by the store's clock."""
    first_attempt_at: datetime | None
    last_attempt_at: datetime | None
    last_error: str | None = field(repr=False)
    """Why the last attempt failed, in one line; `None` if none has failed since it was published or postponed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was given up, and why."""

    id: int
    """The dead letter's own id: the same message or timer id may die many times."""
    message_id: int
    queue: str
    reason: str
    error: str | None = field(repr=False)
    timer_id: str | None = field(repr=False)
    ordering_key: str | None = field(repr=False)
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


FINGERPRINT_LIMIT: Final = 200
"""How many characters of an error its fingerprint is made of."""
_WITH_DIGITS: Final = re.compile(r"[A-Za-z_-]*+[0-9][A-Za-z0-9_-]*+")


def fingerprint(error: str) -> str:
    """What errors with the same cause have in common.

    The first 200 characters of the first line, with `#` for each word that has a digit in it: a number, an id, a
    time. A word is made of ASCII letters, digits, `_` and `-`.
    """
    return _WITH_DIGITS.sub("#", error.partition("\n")[0][:FINGERPRINT_LIMIT])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadGroup:
    """Dead letters of one queue that died for the same reason, with the same fingerprint."""

    queue: str
    reason: str
    fingerprint: str | None
    """See `fingerprint`; `None` where there is no error."""
    count: int
    first_died_at: datetime
    last_died_at: datetime
    newest: int
    """The highest id among them."""


@dataclass(frozen=True, slots=True)
class DeadSummary:
    """How many dead letters there are, and in which groups."""

    count: int
    """All of them, whether or not their group is listed."""
    groups: tuple[DeadGroup, ...]


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
