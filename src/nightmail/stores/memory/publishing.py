"""What a publish does, by the owner of the timer id and whether it runs."""

from __future__ import annotations

from datetime import datetime

from nightmail.errors import LeaseLost, TimerExists
from nightmail.message import DeadDelivery, Delivery, Message
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.rows import Row
from nightmail.stores.memory.times import after, due_time
from nightmail.stores.shared.conflicts import replaces


def publish(changes: Changes, message: Message, own: Delivery | None, now: datetime) -> int | None:
    """Store a message by the rules of `Store.publish`; returns its id, or `None`."""
    if isinstance(own, DeadDelivery):
        if changes.leased_letter(own) is None:
            raise LeaseLost([own.id])
        own = None  # A dead letter owns no timer id.
    elif own is not None and changes.leased(own) is None:
        raise LeaseLost([own.id])
    if message.timer_id is None:
        return changes.add(message, now).id
    owner = changes.queue(message.queue).owner_of(message.timer_id)
    if own is not None and owner is not None and owner.id == own.id:
        return _rearm(changes, message, owner, now)
    match message.on_conflict:
        case "skip":
            return None if _taken(changes, message, owner, now) else _store(changes, message, now)
        case "raise":
            if _taken(changes, message, owner, now):
                raise TimerExists(message.queue, message.timer_id)
            return _store(changes, message, now)
        case "replace" | "earliest" | "latest":
            return _replace(changes, message, owner, now)


def _taken(changes: Changes, message: Message, owner: Row | None, now: datetime) -> bool:
    if owner is not None or message.timer_id is None:
        return owner is not None
    until = changes.queue(message.queue).windows.time(message.timer_id)
    return until is not None and until > now


def _store(changes: Changes, message: Message, now: datetime) -> int:
    if message.timer_id is not None and message.dedup_for is not None:
        changes.open_window(message.queue, message.timer_id, after(now, message.dedup_for), now)
    return changes.add(message, now).id


def _rearm(changes: Changes, message: Message, running: Row, now: datetime) -> int:
    """The new message takes the timer id; the running one goes on without it, and keeps its retries."""
    with changes.editing(running):
        running.timer_key = None
    return _store(changes, message, now)


def _replace(changes: Changes, message: Message, owner: Row | None, now: datetime) -> int | None:
    if owner is None:
        return _store(changes, message, now)
    if owner.running(now):
        # Due times are not compared: a running message is no longer scheduled, and the request to run again must
        # not be lost with it.
        with changes.editing(owner):
            owner.timer_key = None
            owner.superseded = True
        return _store(changes, message, now)
    if not replaces(message.on_conflict, due_time(message.due, now), owner.due_at):
        return None
    with changes.editing(owner):
        owner.overwrite(message, now)
    changes.ring_if_soon(owner.queue, owner.due_at, now)
    return owner.id
