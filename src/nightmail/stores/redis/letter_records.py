"""Dead letters in script replies: the message that each was, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from nightmail.message import DeadDelivery, Delivery
from nightmail.records import DeadLetter
from nightmail.stores.redis.records import Record, read_record, text
from nightmail.stores.redis.times import time_of, time_or_none

# As in letters.lua: the message's id, when it died, when the dead letter is due, when it was claimed, its failed runs
# and claims, sizes of reason and error.
_WHY: Final = Struct(">16sdddIIHI")


class LetterRecord(NamedTuple):
    """A dead letter of a reply."""

    message: Record
    message_id: int
    died: float
    due: float
    claimed: float
    attempts: int
    deliveries: int
    reason: str
    error: str | None

    def letter(self, queue: str) -> DeadLetter:
        """As an operator sees it."""
        message = self.message
        return DeadLetter(
            id=message.id,
            message_id=self.message_id,
            queue=queue,
            reason=self.reason,
            error=self.error,
            timer_id=message.timer_id,
            ordering_key=message.ordering_key,
            priority=message.priority,
            attempts=message.attempts,
            deliveries=message.deliveries,
            published_at=time_of(message.published),
            first_attempt_at=time_or_none(message.first),
            last_attempt_at=time_or_none(message.last),
            died_at=time_of(self.died),
            body=message.body,
            encoded_headers=message.headers,
        )

    def delivery(self, queue: str, token: UUID) -> DeadDelivery:
        """As claimed under this token."""
        message = self.message
        return DeadDelivery(
            id=message.id,
            token=token,
            queue=queue,
            body=message.body,
            encoded_headers=message.headers,
            timer_id=message.timer_id,
            ordering_key=message.ordering_key,
            priority=message.priority,
            due_at=time_of(self.due),
            published_at=time_of(message.published),
            claimed_at=time_of(self.claimed),
            expires_at=None,
            attempts=self.attempts,
            deliveries=self.deliveries,
            first_attempt_at=time_or_none(message.first),
            last_attempt_at=time_or_none(message.last),
            superseded=False,
            message_id=self.message_id,
            reason=self.reason,
            error=self.error,
            died_at=time_of(self.died),
        )


def dead_deliveries(reply: bytes, queues: Sequence[str], token: UUID) -> list[Delivery]:
    """The dead letters of a reply, as claimed from these queues under this token."""
    return [record.delivery(queues[record.message.place - 1], token) for record in letter_records(reply)]


def letter_records(reply: bytes, at: int = 0) -> Iterator[LetterRecord]:
    """The dead letters of a reply."""
    while at < len(reply):
        message, at = read_record(reply, at)
        message_id, died, due, claimed, attempts, deliveries, reason_size, error_size = _WHY.unpack_from(
            reply, at
        )
        reason_at = at + _WHY.size
        error_at = reason_at + reason_size
        at = error_at + error_size
        yield LetterRecord(
            message,
            int(message_id, 16),
            died,
            due,
            claimed,
            attempts,
            deliveries,
            text(reply[reason_at:error_at]),
            text(reply[error_at + 1 : at]) if error_size else None,
        )
