"""What a publish does, depending on the owner of the timer id and whether it runs.

The write lock is held, so what was read stays true: no step here is ever repeated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from nightmail.errors import TimerExists
from nightmail.message import DeadDelivery, Delivery, Message
from nightmail.stores.shared.conflicts import replaces
from nightmail.stores.sql.verbs import Change, Verb
from nightmail.stores.sqlite.leases import Leases
from nightmail.stores.sqlite.queries import OnlyAsk, Queries
from nightmail.stores.sqlite.ringing import NO_QUEUES, if_soon, ring
from nightmail.stores.sqlite.times import StoreTime, after, due_moment


class _Owner(NamedTuple):
    id: int
    due_at: int
    lease_until: int | None
    ordering_key: str | None


class Publishing:
    """The verbs `publish` and `publish_batch`."""

    def __init__(self, sql: Queries, time: StoreTime, *, messages: Leases, letters: Leases) -> None:
        self._sql = sql
        self._time = time
        self._messages = messages
        self._letters = letters

    def publish_one(self, message: Message) -> Verb[Change[int]]:
        """Store a message without a timer id. Returns its id."""
        return self._insert(message, self._time.stamp())

    def publish(self, message: Message, own: Delivery | None) -> Verb[Change[int | None]]:
        """Store a message. Returns its id, or `None`."""
        if own is not None:
            leases = self._letters if isinstance(own, DeadDelivery) else self._messages
            yield from leases.hold([own])
        now = self._time.stamp()
        if message.timer_id is None:
            return (yield from self._insert(message, now, only=own is None))
        found = yield self._sql("owner", queue=message.queue, timer_id=message.timer_id)
        owner = _Owner(*found[0]) if found else None
        if owner is not None and _is_own(owner, own):
            return (yield from self._take_timer_id(message, owner, now, superseded=False))
        match message.on_conflict:
            case "skip" | "raise":
                return (yield from self._if_free(message, owner, now))
            case "replace" | "earliest" | "latest":
                return (yield from self._instead_of(owner, message, now))

    def publish_batch(self, messages: Sequence[Message]) -> Verb[Change[list[int]]]:
        """Store messages without timer ids. Returns their ids, in order."""
        now = self._time.stamp()
        rows: list[Sequence[Any]] = []
        rings: frozenset[str] = NO_QUEUES
        position = 1
        ends: dict[tuple[str, str], int] = {}
        for message in messages:
            fields = _fields(message, now)
            follows = message.ordering_key is not None and _joins(ends, message, fields["due_at"])
            rows.append((*fields.values(), position, len(message.body), int(follows)))
            position += len(message.body)
            rings |= if_soon(message.queue, fields["due_at"], now)
        # One extra byte: `substr` of an empty blob gives NULL, not an empty blob.
        bodies = b"".join([*(message.body for message in messages), b"\n"])
        found = yield OnlyAsk(*self._sql("publish_batch", now=now, messages=json.dumps(rows), bodies=bodies))
        return Change(sorted(id_ for (id_,) in found), rings)

    def _if_free(self, message: Message, owner: _Owner | None, now: int) -> Verb[Change[int | None]]:
        taken = owner is not None or (
            yield self._sql("window", queue=message.queue, timer_id=message.timer_id, now=now)
        )
        if not taken:
            return (yield from self._insert(message, now))
        if message.on_conflict == "raise" and message.timer_id is not None:
            raise TimerExists(message.queue, message.timer_id)
        return Change(None)

    def _instead_of(self, owner: _Owner | None, message: Message, now: int) -> Verb[Change[int | None]]:
        if owner is None:
            return (yield from self._insert(message, now))
        if owner.lease_until is not None and owner.lease_until > now:
            # Due times are not compared: a running message is no longer scheduled, and the new message must not be
            # lost when it ends.
            return (yield from self._take_timer_id(message, owner, now, superseded=True))
        if not replaces(message.on_conflict, due_moment(message.due, now), owner.due_at):
            return Change(None)
        fields = _fields(message, now)
        yield self._sql("overwrite", id=owner.id, body=message.body, now=now, **fields)
        rings = if_soon(message.queue, fields["due_at"], now)
        if owner.ordering_key is not None:
            # Its ordering key or due time may change: the next message with the old key may run.
            rings = frozenset((message.queue,))
        return Change(owner.id, (yield from ring(self._sql, rings)))

    def _take_timer_id(
        self, message: Message, running: _Owner, now: int, *, superseded: bool
    ) -> Verb[Change[int | None]]:
        yield self._sql("detach", id=running.id, superseded=superseded)
        return (yield from self._insert(message, now))

    def _insert(self, message: Message, now: int, *, only: bool = False) -> Verb[Change[int]]:
        fields = _fields(message, now)
        ask = self._sql("publish", now=now, timer_id=message.timer_id, body=message.body, **fields)
        ((id_,),) = yield OnlyAsk(*ask) if only else ask
        if message.dedup_for is not None:
            until = after(now, message.dedup_for)
            yield self._sql("clear_windows", now=now)
            yield self._sql("open_window", queue=message.queue, timer_id=message.timer_id, until=until)
        return Change(id_, if_soon(message.queue, fields["due_at"], now))


def _is_own(owner: _Owner, own: Delivery | None) -> bool:
    # A dead letter owns no timer id, and its id may equal that of any message.
    return own is not None and not isinstance(own, DeadDelivery) and own.id == owner.id


def _fields(message: Message, now: int) -> dict[str, Any]:
    """The fields of a message except its timer id and body, in the order of `publish_batch`."""
    return {
        "queue": message.queue,
        "priority": message.priority,
        "due_at": due_moment(message.due, now),
        "expires_at": None if message.expires_in is None else after(now, message.expires_in),
        "ordering_key": message.ordering_key,
        "headers": message.encoded_headers,
    }


def _joins(ends: dict[tuple[str, str], int], message: Message, due_at: int) -> bool:
    """Whether it follows the previous message of its ordering key. `ends`: the due time of each key's last message."""
    line = message.queue, message.ordering_key or ""
    before = ends.get(line)
    ends[line] = due_at
    return before is not None and before <= due_at
