"""Driver rows, read by position, made into our values. Queues, timer ids and ordering keys are stored as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from nightmail.message import DeadDelivery, Delivery
from nightmail.records import DeadLetter, PendingMessage, QueueStats, StoredMessage
from nightmail.stores.mysql.times import aware, aware_if_any, shown, shown_if_any

MOST: Final = 2**31 - 1
"""The maximum of a counter: it stays there."""


def counted(claims: int) -> int:
    """A counter plus one."""
    return min(claims, MOST - 1) + 1


def is_readable(row: Sequence[Any]) -> bool:
    """Whether a claimed row is a valid message: others may have written invalid dates."""
    # Written out, because it runs for every message.
    return (
        isinstance(row[7], datetime)
        and isinstance(row[8], datetime)
        and (row[9] is None or isinstance(row[9], datetime))
        and (row[12] is None or isinstance(row[12], datetime))
        and (row[13] is None or isinstance(row[13], datetime))
    )


def is_readable_letter(row: Sequence[Any]) -> bool:
    """The same for a dead letter."""
    return all(isinstance(row[place], datetime) for place in (7, 8, 16)) and all(
        row[place] is None or isinstance(row[place], datetime) for place in (11, 12)
    )


def delivery(row: Sequence[Any], token: UUID, claimed_at: datetime, deliveries: int) -> Delivery:
    """A message claimed under this token. Positional, in the order of `Delivery`, because it runs for every message."""
    (
        id_,
        queue,
        body,
        headers,
        timer_id,
        key,
        priority,
        due,
        published,
        expires,
        attempts,
        _,
        first,
        last,
        over,
    ) = row[:15]
    return Delivery(
        id_,
        token,
        text(queue),
        body,
        headers,
        None if timer_id is None else text(timer_id),
        None if key is None else text(key),
        priority,
        aware(due),
        aware(published),
        claimed_at,
        aware_if_any(expires),
        attempts,
        deliveries,
        aware_if_any(first),
        aware_if_any(last),
        bool(over),
    )


def letter(row: Sequence[Any], token: UUID, claimed_at: datetime, deliveries: int) -> DeadDelivery:
    """A dead letter claimed under this token."""
    return DeadDelivery(
        id=row[0],
        token=token,
        queue=text(row[1]),
        body=row[2],
        encoded_headers=row[3],
        timer_id=_text_if_any(row[4]),
        ordering_key=_text_if_any(row[5]),
        priority=row[6],
        due_at=aware(row[7]),
        published_at=aware(row[8]),
        claimed_at=claimed_at,
        expires_at=None,
        attempts=row[9],
        deliveries=deliveries,
        first_attempt_at=aware_if_any(row[11]),
        last_attempt_at=aware_if_any(row[12]),
        superseded=False,
        message_id=row[13],
        reason=row[14],
        error=row[15],
        died_at=aware(row[16]),
    )


def pending(row: Sequence[Any]) -> PendingMessage:
    """A waiting message."""
    return PendingMessage(
        id=row[0],
        queue=text(row[1]),
        timer_id=_text_if_any(row[2]),
        ordering_key=_text_if_any(row[3]),
        priority=row[4],
        due_at=shown(row[5]),
        published_at=shown(row[6]),
        expires_at=shown_if_any(row[7]),
        attempts=row[8],
        body=row[9],
        encoded_headers=row[10],
    )


def stored(row: Sequence[Any]) -> StoredMessage:
    """A message, waiting or running."""
    return StoredMessage(
        id=row[0],
        queue=text(row[1]),
        timer_id=_text_if_any(row[2]),
        ordering_key=_text_if_any(row[3]),
        priority=row[4],
        due_at=shown(row[5]),
        published_at=shown(row[6]),
        expires_at=shown_if_any(row[7]),
        attempts=row[8],
        body=row[9],
        encoded_headers=row[10],
        deliveries=row[11],
        superseded=bool(row[12]),
        claimed_at=shown_if_any(row[13]),
        lease_until=shown_if_any(row[14]),
        running=bool(row[15]),
        first_attempt_at=shown_if_any(row[16]),
        last_attempt_at=shown_if_any(row[17]),
        last_error=_text_if_any(row[18]),
    )


def dead_letter(row: Sequence[Any]) -> DeadLetter:
    """A message that was given up."""
    return DeadLetter(
        id=row[0],
        message_id=row[1],
        queue=text(row[2]),
        reason=row[3],
        error=row[4],
        timer_id=_text_if_any(row[5]),
        ordering_key=_text_if_any(row[6]),
        priority=row[7],
        attempts=row[8],
        deliveries=row[9],
        published_at=shown(row[10]),
        first_attempt_at=shown_if_any(row[11]),
        last_attempt_at=shown_if_any(row[12]),
        died_at=shown(row[13]),
        body=row[14],
        encoded_headers=row[15],
    )


def queue_stats(counts: Sequence[int], running: int, oldest: int | None, dead: int) -> QueueStats:
    """The statistics of a queue with messages: how many it has, are due, and are superseded.

    What is superseded was running, so it is due too.
    """
    messages, due, superseded = counts
    return QueueStats(
        # Not below 0, if the clock was set back.
        ready=max(due - superseded - running, 0),
        scheduled=messages - due,
        running=running,
        superseded=superseded,
        dead=dead,
        oldest_due_age=None if oldest is None else timedelta(microseconds=oldest),
    )


def text(name: bytes) -> str:
    """Bytes as text. Those that others wrote and that are not text must not fail the claims of all other messages."""
    return name.decode("utf-8", "replace")


def _text_if_any(name: bytes | None) -> str | None:
    return None if name is None else text(name)
