"""Converts the driver's rows into our values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from nightmail.controls import LeasedMessage, Pause, worker_of
from nightmail.errors import OtherDatabase, SchemaMissing
from nightmail.message import DeadDelivery
from nightmail.records import DeadGroup, DeadLetter, PendingMessage, QueueStats, StoredMessage


def answer(rows: Sequence[Any]) -> Any:
    """The one row of a statement that may run in a caller's transaction, if these are our tables."""
    if not rows:
        raise SchemaMissing
    if not rows[0]["ours"]:
        raise OtherDatabase
    return rows[0]


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


def stored(row: Any) -> StoredMessage:
    """A message, waiting or running."""
    return StoredMessage(
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
        deliveries=row["deliveries"],
        superseded=row["superseded"],
        claimed_at=row["claimed_at"],
        lease_until=row["lease_until"],
        running=row["running"],
        first_attempt_at=row["first_attempt_at"],
        last_attempt_at=row["last_attempt_at"],
        last_error=row["last_error"],
    )


def dead_group(row: Any) -> DeadGroup:
    """Dead letters with one cause."""
    return DeadGroup(
        queue=row["queue"],
        reason=row["reason"],
        fingerprint=row["fingerprint"],
        count=row["letters"],
        first_died_at=row["first_died_at"],
        last_died_at=row["last_died_at"],
        newest=row["newest"],
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


def pause(row: Any) -> Pause:
    """A pause."""
    return Pause(
        queue=row["queue"],
        ordering_key=row["ordering_key"] or None,
        by=row["paused_by"],
        reason=row["reason"],
        since=row["since"],
        until=row["until"],
        automatic=row["automatic"],
    )


def leased_message(row: Any) -> LeasedMessage:
    """A running message, and who holds it."""
    return LeasedMessage(
        id=row["id"],
        queue=row["queue"],
        worker_id=worker_of(row["token"]),
        attempts=row["attempts"],
        deliveries=row["deliveries"],
        claimed_at=row["claimed_at"],
        lease_until=row["lease_until"],
    )
