"""Rows as the driver gives them, made into our values."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from nightmail.message import Delivery
from nightmail.records import DeadLetter, PendingMessage, QueueStats

_ZERO = timedelta(0)


def delivery(row: Any) -> Delivery:
    """A claimed message. By position, in the order of the statements: this is done for every message."""
    return Delivery(
        id=row[0],
        token=row[1],
        queue=row[2],
        body=row[3],
        encoded_headers=row[4],
        timer_id=row[5],
        ordering_key=row[6],
        priority=row[7],
        due_at=row[8],
        published_at=row[9],
        claimed_at=row[10],
        expires_at=row[11],
        attempts=row[12],
        deliveries=row[13],
        first_attempt_at=row[14],
        last_attempt_at=row[15],
        superseded=row[16],
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
    """A message that was given up."""
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
    """How a queue stands."""
    return QueueStats(
        ready=row["ready"],
        scheduled=row["scheduled"],
        running=row["running"],
        superseded=row["superseded"],
        dead=row["dead"],
        oldest_due_age=row["oldest_due_age"],
    )
