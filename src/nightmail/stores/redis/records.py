"""Arguments and replies of the scripts, packed: a reply of a thousand messages is one string.

The driver takes some microseconds for each value of a reply, and each message has fifteen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from nightmail.message import Delivery, Due, Message
from nightmail.records import PendingMessage, StoredMessage
from nightmail.stores.redis.ids import digits
from nightmail.stores.redis.times import micros, time_micros, time_of, time_or_none

# As in publish.lua: id, queue, priority, policy, kind of due time, due time, expiry, dedup window, sizes of the texts.
_FACTS: Final = Struct(">16sHBBBdddHH")
_POLICIES: Final = {"skip": 0, "raise": 0, "replace": 1, "earliest": 2, "latest": 3}
# As in common.lua: queue, id, the state, sizes of timer id, ordering key, headers and body.
_RECORD: Final = Struct(">H16s6dIIBBBIIII")
# As in stored.lua: when the lease ends, whether it runs, the size of the last error.
_LEASE: Final = Struct(">dBI")


def facts(message: Message, id_: int, place: int) -> bytes:
    """The facts of a published message, without its body."""
    kind, due = _due(message.due)
    timer = b"" if message.timer_id is None else message.timer_id.encode()
    key = b"" if message.ordering_key is None else message.ordering_key.encode()
    headers = b"" if message.encoded_headers == "{}" else message.encoded_headers.encode()
    fixed = _FACTS.pack(
        digits(id_),
        place,
        message.priority,
        _POLICIES[message.on_conflict],
        kind,
        due,
        0 if message.expires_in is None else micros(message.expires_in),
        0 if message.dedup_for is None else micros(message.dedup_for),
        len(timer),
        len(key),
    )
    return b"".join((fixed, timer, key, headers))


def _due(due: Due) -> tuple[int, int]:
    if due is None:
        return 0, 0
    if isinstance(due, datetime):
        return 2, time_micros(due)
    return 1, max(micros(due), 0)


class Record(NamedTuple):
    """A message of a reply."""

    place: int
    """The index of its queue among the keys, from 1."""
    id: int
    due: float
    published: float
    expires: float
    claimed: float
    first: float
    last: float
    attempts: int
    deliveries: int
    priority: int
    superseded: int
    timer_id: str | None
    ordering_key: str | None
    headers: str
    body: bytes

    def pending(self, queue: str) -> PendingMessage:
        """As an operator sees it while it waits."""
        return PendingMessage(
            id=self.id,
            queue=queue,
            timer_id=self.timer_id,
            ordering_key=self.ordering_key,
            priority=self.priority,
            due_at=time_of(self.due),
            published_at=time_of(self.published),
            expires_at=time_or_none(self.expires),
            attempts=self.attempts,
            body=self.body,
            encoded_headers=self.headers,
        )


def stored_messages(reply: bytes, queue: str) -> Iterator[StoredMessage]:
    """The messages of a reply, each followed by its lease and its last error, as an operator sees them."""
    at = 0
    while at < len(reply):
        record, at = read_record(reply, at)
        until, running, size = _LEASE.unpack_from(reply, at)
        error_at = at + _LEASE.size
        at = error_at + size
        yield StoredMessage(
            id=record.id,
            queue=queue,
            timer_id=record.timer_id,
            ordering_key=record.ordering_key,
            priority=record.priority,
            due_at=time_of(record.due),
            published_at=time_of(record.published),
            expires_at=time_or_none(record.expires),
            attempts=record.attempts,
            body=record.body,
            encoded_headers=record.headers,
            deliveries=record.deliveries,
            superseded=bool(record.superseded),
            claimed_at=time_or_none(record.claimed),
            lease_until=time_or_none(until),
            running=bool(running),
            first_attempt_at=time_or_none(record.first),
            last_attempt_at=time_or_none(record.last),
            last_error=text(reply[error_at:at]) if size else None,
        )


def deliveries(reply: bytes, queues: Sequence[str], token: UUID) -> list[Delivery]:
    """The messages of a reply, as claimed from these queues under this token."""
    return [
        Delivery(
            record.id,
            token,
            queues[record.place - 1],
            record.body,
            record.headers,
            record.timer_id,
            record.ordering_key,
            record.priority,
            time_of(record.due),
            time_of(record.published),
            time_of(record.claimed),
            time_or_none(record.expires),
            record.attempts,
            record.deliveries,
            time_or_none(record.first),
            time_or_none(record.last),
            bool(record.superseded),
        )
        for record in records(reply)
    ]


def records(reply: bytes) -> Iterator[Record]:
    """The messages of a reply."""
    at = 0
    while at < len(reply):
        record, at = read_record(reply, at)
        yield record


def read_record(reply: bytes, at: int) -> tuple[Record, int]:
    """The message that begins here, and where it ends."""
    (
        place,
        id_,
        due,
        published,
        expires,
        claimed,
        first,
        last,
        attempts,
        deliveries,
        priority,
        superseded,
        _,
        timer_size,
        key_size,
        headers_size,
        body_size,
    ) = _RECORD.unpack_from(reply, at)
    timer_at = at + _RECORD.size
    key_at = timer_at + timer_size
    headers_at = key_at + key_size
    body_at = headers_at + headers_size
    end = body_at + body_size
    record = Record(
        place,
        int(id_, 16),
        due,
        published,
        expires,
        claimed,
        first,
        last,
        attempts,
        deliveries,
        priority,
        superseded,
        text(reply[timer_at:key_at]) if timer_size else None,
        text(reply[key_at:headers_at]) if key_size else None,
        text(reply[headers_at:body_at]) if headers_size else "{}",
        reply[body_at:end],
    )
    return record, end


def text(raw: bytes) -> str:
    """A text read from a hash."""
    # Other software may have written invalid UTF-8: show it rather than fail.
    return raw.decode("utf-8", "backslashreplace")
