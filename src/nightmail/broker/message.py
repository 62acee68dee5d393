"""What a handler gets, and how its verdict is kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from faststream.message import StreamMessage

from nightmail.durations import Duration, as_timedelta
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Retry


@dataclass(frozen=True, slots=True)
class Nacked:
    """Failed, and the retry policy shall decide what follows."""


Verdict: TypeAlias = Outcome | Nacked


@dataclass(slots=True, eq=False)
class Received:
    """A delivery on its way through FastStream, with the first verdict given on it."""

    delivery: Delivery
    verdict: Verdict | None = None

    def judge(self, verdict: Verdict) -> None:
        """Keep this verdict unless there is one already: the first wins."""
        if self.verdict is None:
            self.verdict = verdict


class OutboxMessage(StreamMessage[Received]):
    """The message in a handler. Verdicts are recorded, and written after the handler has ended."""

    @property
    def delivery(self) -> Delivery:
        """The delivery as the store gave it."""
        return self.raw_message.delivery

    @property
    def id(self) -> int:
        """The message's id in the store."""
        return self.delivery.id

    @property
    def queue(self) -> str:
        """The queue it was published to."""
        return self.delivery.queue

    @property
    def attempt(self) -> int:
        """Which handler run this is, from 1."""
        return self.delivery.attempt

    @property
    def deliveries(self) -> int:
        """Claims since it was last settled: more than 1 means a worker was lost with it."""
        return self.delivery.deliveries

    @property
    def due_at(self) -> datetime:
        """When it became due."""
        return self.delivery.due_at

    @property
    def published_at(self) -> datetime:
        """When it was published."""
        return self.delivery.published_at

    @property
    def timer_id(self) -> str | None:
        """Its business key, if it has one."""
        return self.delivery.timer_id

    @property
    def ordering_key(self) -> str | None:
        """The key whose messages go one at a time, if it has one."""
        return self.delivery.ordering_key

    async def ack(self) -> None:
        """Handled: it leaves the store."""
        self.raw_message.judge(Done())
        await super().ack()

    async def nack(self, delay: Duration | None = None) -> None:
        """Failed: try again after `delay`, or when the retry policy says."""
        self.raw_message.judge(Nacked() if delay is None else Retry(as_timedelta("delay", delay)))
        await super().nack()

    async def reject(self, reason: str | None = None) -> None:
        """Given up: it goes to the dead letters."""
        self.raw_message.judge(Dead(reason or Reason.REJECTED))
        await super().reject()

    async def postpone(self, delay: Duration) -> None:
        """Not yet: look again after `delay`. Costs no attempt; both counters start afresh."""
        self.raw_message.judge(Postpone(as_timedelta("delay", delay)))
        await super().nack()

    def __repr__(self) -> str:
        # Neither body nor headers: this ends up in logs.
        return f"OutboxMessage(id={self.id}, queue={self.queue!r}, attempt={self.attempt})"


def correlation_of(headers: dict[str, Any], delivery: Delivery) -> str:
    """The correlation id from the headers, or one that is the same for every delivery of this message."""
    found = headers.get("correlation_id")
    return found if isinstance(found, str) and found else f"nightmail-{delivery.id}"
