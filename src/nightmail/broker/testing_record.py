"""What was published under a test broker: kept to look at, and shown to the publishers' mocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from nightmail.broker.message import OutboxMessage
from nightmail.broker.producer import OutboxProducer
from nightmail.broker.publisher import OutboxPublisher
from nightmail.broker.received import Received
from nightmail.message import Delivery, Message

if TYPE_CHECKING:
    from nightmail.broker.broker import OutboxBroker
    from nightmail.broker.commands import OutboxPublishCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One message that was stored, as it was when it was published."""

    id: int
    queue: str
    body: Any
    """Decoded, as a handler without annotations would get it."""
    headers: dict[str, Any] = field(repr=False)
    published_at: datetime
    due_at: datetime
    expires_at: datetime | None
    timer_id: str | None
    ordering_key: str | None
    priority: int

    @property
    def delay(self) -> timedelta:
        """How long after the publish it is due."""
        return self.due_at - self.published_at


class Record:
    """Everything that was published through some brokers, in order."""

    def __init__(self, brokers: Iterable[OutboxBroker]) -> None:
        self.published: list[Published] = []
        self._brokers = tuple(brokers)

    async def note(self, broker: OutboxBroker, message: Message, id_: int, now: datetime) -> None:
        """Keep this, and show it to the publishers of its queue."""
        seen = await as_seen(broker, message, id_, now)
        delivery = seen.delivery
        self.published.append(
            Published(
                id=id_,
                queue=message.queue,
                body=await seen.decode(),
                headers=delivery.headers,
                published_at=now,
                due_at=delivery.due_at,
                expires_at=delivery.expires_at,
                timer_id=message.timer_id,
                ordering_key=message.ordering_key,
                priority=message.priority,
            )
        )
        for each in self._brokers:
            for publisher in each.publishers:
                if isinstance(publisher, OutboxPublisher) and publisher.queue == message.queue:
                    # So that an assertion may ask for context={"message.timer_id": ...}.
                    with each.context.scope("message", seen):
                        await publisher._recorder.record(seen)


async def as_seen(broker: OutboxBroker, message: Message, id_: int, now: datetime) -> OutboxMessage:
    """The message as a handler of this broker would see it."""
    delivery = Delivery(
        id=id_,
        token=uuid4(),
        queue=message.queue,
        body=message.body,
        encoded_headers=message.encoded_headers,
        timer_id=message.timer_id,
        ordering_key=message.ordering_key,
        priority=message.priority,
        due_at=_due(message, now),
        published_at=now,
        claimed_at=now,
        expires_at=None if message.expires_in is None else now + message.expires_in,
        attempts=0,
        deliveries=0,
        first_attempt_at=None,
        last_attempt_at=None,
        superseded=False,
    )
    producer, codec = broker.config.producer, broker.config.broker_codec
    seen = cast("OutboxMessage", await producer._parser(Received(delivery, broker.store)))
    seen.set_decoder(producer._decoder if codec is None else codec.decode)
    return seen


def _due(message: Message, now: datetime) -> datetime:
    if isinstance(message.due, datetime):
        return max(message.due.astimezone(UTC), now)
    return now + max(message.due or timedelta(0), timedelta(0))


class RecordingProducer(OutboxProducer):
    """Publishes for real, and keeps what was published."""

    __slots__ = ("_broker", "_record")

    def __init__(self, broker: OutboxBroker, record: Record) -> None:
        super().__init__(lambda: broker.store, parser=broker._parser, decoder=broker._decoder)
        self._broker = broker
        self._record = record

    async def publish(self, cmd: OutboxPublishCommand) -> int | None:
        """Store one message, and keep it."""
        stored = await super().publish(cmd)
        if stored is not None:
            await self._note(cmd, [stored])
        return stored

    async def publish_batch(self, cmd: OutboxPublishCommand) -> list[int]:
        """Store all or none, and keep them."""
        stored = await super().publish_batch(cmd)
        await self._note(cmd, stored)
        return stored

    async def _note(self, cmd: OutboxPublishCommand, stored: list[int]) -> None:
        now = datetime.now(UTC)
        for message, id_ in zip(await self.encoded(cmd), stored, strict=True):
            await self._record.note(self._broker, message, id_, now)
