"""Why a message does not run: everything that holds it back, in one answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from nightmail.controls import LastConsumer, MessageFacts, WorkerRecord
from nightmail.operations.liveness import consumers, is_live, name_of, subscribers
from nightmail.operations.reasons import (
    Available,
    Delivered,
    Died,
    DueLater,
    Expired,
    KeyHeld,
    Leased,
    Locked,
    NoWorker,
    Paused,
    StopRequested,
    Superseded,
    Unknown,
    WhyReason,
    WorkerLost,
)
from nightmail.records import QueueStats, StoredMessage
from nightmail.store import FullStore

__all__ = ["WhyReason", "explain", "why"]

LOOK_INTERVAL: Final = timedelta(seconds=5)
"""See `Store.look_interval`."""
_NOT_IN_THE_WAY: Final = (WorkerLost, Expired)
"""Reasons with which a message is available all the same."""


async def why(store: FullStore, id_: int) -> list[WhyReason]:
    """Everything that holds this message back, or what has become of it."""
    facts = await store.facts(id_)
    behind = None
    if facts.message is not None and any(pause.ordering_key is None for pause in facts.pauses):
        # Only then: to count a queue is more work than all the rest.
        behind = (await store.stats()).get(facts.message.queue, QueueStats()).ready
    workers = await store.workers()
    last_consumer = None
    message = facts.message
    if message is not None and not message.running and not _live(message.queue, workers, facts.now):
        last_consumer = (await store.last_consumers()).get(message.queue)
    return explain(
        facts, workers, look_interval=store.look_interval, behind=behind, last_consumer=last_consumer
    )


def explain(
    facts: MessageFacts,
    workers: Sequence[WorkerRecord],
    *,
    look_interval: timedelta = LOOK_INTERVAL,
    behind: int | None = None,
    last_consumer: LastConsumer | None = None,
) -> list[WhyReason]:
    """What these facts say about why a message does not run: all that applies, never nothing.

    `behind` is how many messages of its queue are ready, if that was counted; `last_consumer` is who consumed its queue
    last, which is said if none of `workers` is live and does.
    """
    message = facts.message
    if message is None:
        return list(_gone(facts)) or [Unknown()]
    if message.running:
        return list(_running(facts, message, workers))
    reasons = list(_waiting(facts, message, workers, behind, last_consumer))
    if all(isinstance(reason, _NOT_IN_THE_WAY) for reason in reasons):
        live = _live(message.queue, workers, facts.now)
        reasons.append(
            Available(queue=message.queue, workers=len(live), within=look_interval, ahead=facts.ahead)
        )
    return reasons


def _gone(facts: MessageFacts) -> Iterator[WhyReason]:
    if (letter := facts.letter) is not None:
        yield Died(
            id=letter.id,
            queue=letter.queue,
            died_at=letter.died_at,
            died_ago=facts.now - letter.died_at,
            cause=letter.reason,
            error=None if letter.error is None else letter.error.partition("\n")[0],
            attempts=letter.attempts,
        )
    if facts.delivered_at is not None:
        yield Delivered(delivered_at=facts.delivered_at, delivered_ago=facts.now - facts.delivered_at)


def _running(
    facts: MessageFacts, message: StoredMessage, workers: Sequence[WorkerRecord]
) -> Iterator[WhyReason]:
    holder = next((each for each in workers if each.id == facts.worker_id), None)
    lost = holder is not None and not is_live(holder, facts.now)
    yield Leased(
        worker_id=facts.worker_id or "",
        worker=None if holder is None else name_of(holder),
        seen_ago=facts.now - holder.seen_at if holder is not None and lost else None,
        running_for=facts.now - (message.claimed_at or facts.now),
        lease_until=message.lease_until or facts.now,
        attempts=message.attempts,
    )
    yield from _replaced(facts, message)
    if facts.locked:
        yield Locked()
    if facts.stop_requested_by is not None:
        yield StopRequested(by=facts.stop_requested_by)


def _waiting(
    facts: MessageFacts,
    message: StoredMessage,
    workers: Sequence[WorkerRecord],
    behind: int | None,
    last_consumer: LastConsumer | None,
) -> Iterator[WhyReason]:
    now = facts.now
    if message.due_at > now:
        yield DueLater(
            due_at=message.due_at,
            due_in=message.due_at - now,
            attempts=message.attempts,
            max_attempts=_max_attempts(message.queue, workers) if message.attempts else None,
            last_error=message.last_error,
        )
    if message.expires_at is not None and message.expires_at <= now:
        yield Expired(
            queue=message.queue, expires_at=message.expires_at, expired_for=now - message.expires_at
        )
    for pause in facts.pauses:
        yield Paused(
            queue=pause.queue,
            ordering_key=pause.ordering_key,
            by=pause.by,
            cause=pause.reason,
            since=pause.since,
            paused_for=now - pause.since,
            until=pause.until,
            ends_in=None if pause.until is None else pause.until - now,
            automatic=pause.automatic,
            behind=behind if pause.ordering_key is None else None,
            ahead=facts.ahead,
        )
    if (first := facts.key_held_by) is not None:
        yield KeyHeld(
            ordering_key=first.ordering_key or "",
            message_id=first.id,
            running=first.running,
            attempts=first.attempts,
            due_in=first.due_at - now,
            max_attempts=_max_attempts(message.queue, workers),
            last_error=first.last_error,
        )
    if message.lease_until is not None:
        yield WorkerLost(
            lease_until=message.lease_until,
            expired_for=now - message.lease_until,
            deliveries=message.deliveries,
        )
    if not _live(message.queue, workers, now):
        yield _no_worker(message.queue, last_consumer, now)
    yield from _replaced(facts, message)
    if facts.locked:
        yield Locked()


def _live(queue: str, workers: Sequence[WorkerRecord], now: datetime) -> list[WorkerRecord]:
    return [each for each in consumers(queue, workers) if is_live(each, now)]


def _no_worker(queue: str, last: LastConsumer | None, now: datetime) -> NoWorker:
    if last is None:
        return NoWorker(queue=queue, worker=None, seen_ago=None)
    # It may have come after `now` was read.
    return NoWorker(queue=queue, worker=name_of(last), seen_ago=max(now - last.seen_at, timedelta(0)))


def _max_attempts(queue: str, workers: Sequence[WorkerRecord]) -> int | None:
    """How often a message of this queue is tried, as the worker says that was seen last."""
    for worker in sorted(consumers(queue, workers), key=attrgetter("seen_at"), reverse=True):
        for each in subscribers(worker):
            most, queues = each.get("max_attempts"), each.get("queues")
            own = isinstance(queues, list) and queue in queues and not each.get("dead_letters")
            if own and isinstance(most, int):
                return most
    return None


def _replaced(facts: MessageFacts, message: StoredMessage) -> Iterator[WhyReason]:
    if message.superseded:
        yield Superseded(timer_id=message.timer_id, message_id=facts.superseded_by)
