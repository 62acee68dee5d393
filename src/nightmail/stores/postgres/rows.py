"""Converts the driver's rows into our values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from nightmail.errors import OtherDatabase, SchemaMissing
from nightmail.message import DeadDelivery, Delivery
from nightmail.records import DeadLetter, PendingMessage, QueueStats


def answer(rows: Sequence[Any]) -> Any:
    """The one row of a statement that may run in a caller's transaction, if these are our tables."""
    if not rows:
        raise SchemaMissing
    if not rows[0]["ours"]:
        raise OtherDatabase
    return rows[0]


def delivery(row: Any, token: UUID) -> Delivery:
    """A message claimed under this token. By position, in the order of `Delivery`: this runs for every message."""
    return Delivery(row[0], token, *row[1:16])


def dead_delivery(row: Any, token: UUID) -> DeadDelivery:
    """A dead letter claimed under this token."""
    return DeadDelivery(
        id=row["id"],
        token=token,
        queue=row["queue"],
        body=row["body"],
        encoded_headers=row["headers"],
        timer_id=row["timer_id"],
        ordering_key=row["ordering_key"],
        priority=row["priority"],
        due_at=row["due_at"],
        published_at=row["published_at"],
        claimed_at=row["claimed_at"],
        expires_at=None,
        attempts=row["failures"],
        deliveries=row["claims"],
        first_attempt_at=row["first_attempt_at"],
        last_attempt_at=row["last_attempt_at"],
        superseded=False,
        message_id=row["message_id"],
        reason=row["reason"],
        error=row["error"],
        died_at=row["died_at"],
    )


def pending(row: Any) -> PendingMessage:
    """A waiting message."""
    return PendingMessage(
        id=row["id"],
        queue=row["queue"],
        timer_id=row["timer_id"],
        ordering_key=row["ordering_key"],
        priority=row["priority"],
        due_at=row["due_at"],
        published_at=row["published_at"],
        expires_at=row["expires_at"],
        attempts=row["attempts"],
        body=row["body"],
        encoded_headers=row["headers"],
    )


def dead_letter(row: Any) -> DeadLetter:
    """A dead letter."""
    return DeadLetter(
        id=row["id"],
        message_id=row["message_id"],
        queue=row["queue"],
        reason=row["reason"],
        error=row["error"],
        timer_id=row["timer_id"],
        ordering_key=row["ordering_key"],
        priority=row["priority"],
        attempts=row["attempts"],
        deliveries=row["deliveries"],
        published_at=row["published_at"],
        first_attempt_at=row["first_attempt_at"],
        last_attempt_at=row["last_attempt_at"],
        died_at=row["died_at"],
        body=row["body"],
        encoded_headers=row["headers"],
    )


def queue_stats(row: Any) -> QueueStats:
    """The counts of a queue."""
    return QueueStats(
        ready=row["ready"],
        scheduled=row["scheduled"],
        running=row["running"],
        superseded=row["superseded"],
        dead=row["dead"],
        oldest_due_age=row["oldest_due_age"],
    )
