"""What a publish does, depending on the owner of the timer id and whether it runs.

The write lock is held, so what was read stays true: no step here is ever repeated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from nightmail.errors import TimerExists
from nightmail.message import DeadDelivery, Delivery, Message
from nightmail.stores.sqlite.leases import Leases
from nightmail.stores.sqlite.moments import StoreTime, after, due_moment
from nightmail.stores.sqlite.notice import NOBODY, if_soon, ring
from nightmail.stores.sqlite.steps import Change, Queries, Steps


class _Bearer(NamedTuple):
    id: int
    due_at: int
    lease_until: int | None
    ordering_key: str | None


class Publishing:
    """The steps of `publish` and `publish_batch`."""

    def __init__(self, sql: Queries, time: StoreTime, leases: Leases) -> None:
        self._sql = sql
        self._time = time
        self._leases = leases

    def publish(self, message: Message, own: Delivery | None) -> Steps[Change[int | None]]:
        """Store a message. Returns its id, or `None`."""
        if own is not None:
            yield from self._leases.hold([own])
        now = self._time.stamp()
        if message.timer_id is None:
            return (yield from self._insert(message, now))
        found = yield self._sql("bearer", queue=message.queue, timer_id=message.timer_id)
        bearer = _Bearer(*found[0]) if found else None
        if bearer is not None and _is_own(bearer, own):
            return (yield from self._take_name(message, bearer, now, superseded=False))
        match message.on_conflict:
            case "skip" | "raise":
                return (yield from self._if_free(message, bearer, now))
            case "replace" | "earliest" | "latest":
                return (yield from self._instead_of(bearer, message, now))

    def publish_batch(self, messages: Sequence[Message]) -> Steps[Change[list[int]]]:
        """Store messages without timer ids. Returns their ids, in order."""
        now = self._time.stamp()
        rows: list[Sequence[Any]] = []
        rings: frozenset[str] = NOBODY
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
        found = yield self._sql("publish_batch", now=now, messages=json.dumps(rows), bodies=bodies)
        return Change(sorted(id_ for (id_,) in found), rings)

    def _if_free(self, message: Message, bearer: _Bearer | None, now: int) -> Steps[Change[int | None]]:
        taken = bearer is not None or (
            yield self._sql("window", queue=message.queue, timer_id=message.timer_id, now=now)
        )
        if not taken:
            return (yield from self._insert(message, now))
        if message.on_conflict == "raise" and message.timer_id is not None:
            raise TimerExists(message.queue, message.timer_id)
        return Change(None)

    def _instead_of(self, bearer: _Bearer | None, message: Message, now: int) -> Steps[Change[int | None]]:
        if bearer is None:
            return (yield from self._insert(message, now))
        if bearer.lease_until is not None and bearer.lease_until > now:
            # Due times are not compared: a running message is no longer scheduled, and the new message must not be
            # lost when it ends.
            return (yield from self._take_name(message, bearer, now, superseded=True))
        if not _wins(message, bearer, now):
            return Change(None)
        fields = _fields(message, now)
        yield self._sql("overwrite", id=bearer.id, body=message.body, now=now, **fields)
        rings = if_soon(message.queue, fields["due_at"], now)
        if bearer.ordering_key is not None:
            # Its ordering key or due time may change: the next message with the old key may run.
            rings = frozenset((message.queue,))
        return Change(bearer.id, (yield from ring(self._sql, rings)))

    def _take_name(
        self, message: Message, running: _Bearer, now: int, *, superseded: bool
    ) -> Steps[Change[int | None]]:
        yield self._sql("detach", id=running.id, superseded=superseded)
        return (yield from self._insert(message, now))

    def _insert(self, message: Message, now: int) -> Steps[Change[int | None]]:
        fields = _fields(message, now)
        ((id_,),) = yield self._sql(
            "publish", now=now, timer_id=message.timer_id, body=message.body, **fields
        )
        if message.dedup_for is not None:
            until = after(now, message.dedup_for)
            yield self._sql("clear_windows", now=now)
            yield self._sql("open_window", queue=message.queue, timer_id=message.timer_id, until=until)
        return Change(id_, if_soon(message.queue, fields["due_at"], now))


def _is_own(bearer: _Bearer, own: Delivery | None) -> bool:
    # A dead letter owns no timer id, and its id may equal that of any message.
    return own is not None and not isinstance(own, DeadDelivery) and own.id == bearer.id


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


def _wins(message: Message, waiting: _Bearer, now: int) -> bool:
    due_at = due_moment(message.due, now)
    match message.on_conflict:
        case "earliest":
            return due_at < waiting.due_at
        case "latest":
            return due_at > waiting.due_at
        case _:
            return True
