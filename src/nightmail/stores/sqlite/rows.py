"""Converts rows to values."""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from nightmail.controls import (
    WORKER_ID_BYTES,
    Consumption,
    LastConsumer,
    LeasedMessage,
    Pause,
    WorkerRecord,
)
from nightmail.message import DeadDelivery, Delivery
from nightmail.records import DeadLetter, PendingMessage, StoredMessage
from nightmail.stores.sql.controls import WHOLE_QUEUE, Leaver, worker_record
from nightmail.stores.sqlite.queries import Row
from nightmail.stores.sqlite.times import moment_of, readable_moment


def leased(row: Sequence[Any], token: UUID, claimed_at: datetime) -> Delivery:
    """A message leased under this token, from what a claim found."""
    (
        id_, due_at, _, timer_id, ordering_key, published_at, expires_at, attempts, deliveries, first_attempt_at,
        last_attempt_at, superseded, queue, priority, headers, body,
    ) = row  # fmt: skip
    # Positional: this runs for every message, and keyword arguments would take twice as long.
    return Delivery(
        id_, token, queue, unhexlify(body), str(unhexlify(headers), "utf-8", "replace"), timer_id, ordering_key,
        priority, moment_of(due_at), moment_of(published_at), claimed_at,
        None if expires_at is None else moment_of(expires_at),
        attempts, deliveries,
        None if first_attempt_at is None else moment_of(first_attempt_at),
        None if last_attempt_at is None else moment_of(last_attempt_at),
        superseded == 1,
    )  # fmt: skip


def leased_letter(row: Row, token: UUID) -> DeadDelivery:
    """A dead letter leased under this token, from the columns of `lease_dead` or `recall_dead`."""
    (
        id_, queue, body, headers, timer_id, ordering_key, priority, due_at, published_at, claimed_at,
        failures, claims, first_attempt_at, last_attempt_at, message_id, reason, error, died_at,
    ) = row  # fmt: skip
    return DeadDelivery(
        id=id_,
        token=token,
        queue=queue,
        body=body,
        encoded_headers=headers,
        timer_id=timer_id,
        ordering_key=ordering_key,
        priority=priority,
        due_at=moment_of(due_at),
        published_at=moment_of(published_at),
        claimed_at=moment_of(claimed_at),
        expires_at=None,
        attempts=failures,
        deliveries=claims,
        first_attempt_at=_exact(first_attempt_at),
        last_attempt_at=_exact(last_attempt_at),
        superseded=False,
        message_id=message_id,
        reason=reason,
        error=error,
        died_at=moment_of(died_at),
    )


def pending_message(row: Row) -> PendingMessage:
    """A waiting message, from the columns of `peek`."""
    (
        id_, queue, timer_id, ordering_key, priority, due_at, published_at, expires_at, attempts, body, headers,
    ) = row  # fmt: skip
    return PendingMessage(
        id=id_,
        queue=queue,
        timer_id=timer_id,
        ordering_key=ordering_key,
        priority=priority,
        due_at=readable_moment(due_at),
        published_at=readable_moment(published_at),
        expires_at=_readable(expires_at),
        attempts=attempts,
        body=body,
        encoded_headers=headers,
    )


def stored_message(row: Row) -> StoredMessage:
    """A message, waiting or running, from the columns of `find`."""
    (
        id_, queue, timer_id, ordering_key, priority, due_at, published_at, expires_at, attempts, body, headers,
        deliveries, superseded, claimed_at, lease_until, running, first_attempt_at, last_attempt_at, last_error,
    ) = row  # fmt: skip
    return StoredMessage(
        id=id_,
        queue=queue,
        timer_id=timer_id,
        ordering_key=ordering_key,
        priority=priority,
        due_at=readable_moment(due_at),
        published_at=readable_moment(published_at),
        expires_at=_readable(expires_at),
        attempts=attempts,
        body=body,
        encoded_headers=headers,
        deliveries=deliveries,
        superseded=superseded == 1,
        claimed_at=_readable(claimed_at),
        lease_until=_readable(lease_until),
        running=running == 1,
        first_attempt_at=_readable(first_attempt_at),
        last_attempt_at=_readable(last_attempt_at),
        last_error=last_error,
    )


def dead_letter(row: Row) -> DeadLetter:
    """A dead letter, from the columns of `dead`."""
    (
        id_, message_id, queue, reason, error, timer_id, ordering_key, priority, attempts, deliveries, published_at,
        first_attempt_at, last_attempt_at, died_at, body, headers,
    ) = row  # fmt: skip
    return DeadLetter(
        id=id_,
        message_id=message_id,
        queue=queue,
        reason=reason,
        error=error,
        timer_id=timer_id,
        ordering_key=ordering_key,
        priority=priority,
        attempts=attempts,
        deliveries=deliveries,
        published_at=readable_moment(published_at),
        first_attempt_at=_readable(first_attempt_at),
        last_attempt_at=_readable(last_attempt_at),
        died_at=readable_moment(died_at),
        body=body,
        encoded_headers=headers,
    )


def pause(row: Row) -> Pause:
    """A pause, from the columns of `pauses`."""
    queue, ordering_key, automatic, since, until, by, reason = row
    return Pause(
        queue=queue,
        ordering_key=None if ordering_key == WHOLE_QUEUE else ordering_key,
        by=by,
        reason=reason,
        since=readable_moment(since),
        until=_readable(until),
        automatic=automatic == 1,
    )


def worker(row: Row) -> WorkerRecord:
    """A worker, from the columns of `workers`."""
    *said, started_at, seen_at = row
    names = ("id", "host", "pid", "version", "queues", "state")
    return worker_record(
        dict(zip(names, said, strict=True)), readable_moment(started_at), readable_moment(seen_at)
    )


def leaver(row: Row) -> Leaver:
    """A worker that may no longer consume its queues, from the columns of `leaving`."""
    id_, queues, host, pid, seen_at = row
    return Leaver(id_, queues, host, pid, readable_moment(seen_at))


def consumption(row: Row) -> Consumption:
    """A queue and who consumed it last, from the columns of `last_consumers`."""
    queue, host, pid, seen_at = row
    return (queue,), LastConsumer(host=host, pid=pid, seen_at=readable_moment(seen_at))


def worker_id(token: bytes) -> str:
    """The id of the worker that made this token."""
    return token[:WORKER_ID_BYTES].hex()


def leased_message(row: Row) -> LeasedMessage:
    """A running message, from the columns of `leases`."""
    id_, queue, token, attempts, deliveries, claimed_at, lease_until = row
    return LeasedMessage(
        id=id_,
        queue=queue,
        worker_id=worker_id(token),
        attempts=attempts,
        deliveries=deliveries,
        claimed_at=readable_moment(claimed_at),
        lease_until=readable_moment(lease_until),
    )


def _readable(stored: object) -> datetime | None:
    return None if stored is None else readable_moment(stored)


def _exact(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else moment_of(microseconds)
