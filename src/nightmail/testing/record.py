"""What was published under a test broker: kept to look at, and shown to the publishers' mocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from nightmail.broker.message import OutboxMessage
from nightmail.broker.producer import OutboxProducer
from nightmail.broker.publisher import OutboxPublisher
from nightmail.broker.received import Received
from nightmail.message import Delivery, Message

if TYPE_CHECKING:
    from nightmail.broker.broker import OutboxBroker
    from nightmail.broker.config import OutboxBrokerConfig
    from nightmail.observe import Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One message that was stored, as it was when it was published."""

    id: int
    queue: str
    headers: dict[str, Any] = field(repr=False)
    published_at: datetime
    due_at: datetime
    expires_at: datetime | None
    timer_id: str | None
    ordering_key: str | None
    priority: int
    decode: Callable[[], Any] = field(repr=False, compare=False)

    @property
    def body(self) -> Any:
        """Decoded, as a handler without annotations would get it; if that fails, as it is stored."""
        return self.decode()

    @property
    def delay(self) -> timedelta:
        """How long after the publish it is due."""
        return self.due_at - self.published_at


class Record:
    """Everything that was published through some brokers, in order."""

    def __init__(self, brokers: Iterable[OutboxBroker], failed: Callable[[Exception], None]) -> None:
        self.published: list[Published] = []
        self._brokers = tuple(brokers)
        self._failed = failed

    async def note(self, broker: OutboxBroker, message: Message, id_: int, now: datetime) -> None:
        """Keep this, and show it to the publishers of its queue."""
        delivery = as_delivered(message, id_, now)
        self.published.append(
            Published(
                id=id_,
                queue=message.queue,
                headers=delivery.headers,
                published_at=now,
                due_at=delivery.due_at,
                expires_at=delivery.expires_at,
                timer_id=message.timer_id,
                ordering_key=message.ordering_key,
                priority=message.priority,
                # Only on demand: parsers and decoders may count their calls.
                decode=cache(partial(_decoded, broker, delivery)),
            )
        )
        watching = [
            (each, publisher)
            for each in self._brokers
            for publisher in each.publishers
            if isinstance(publisher, OutboxPublisher) and publisher.queue == message.queue
        ]
        if watching:
            try:
                await self._show(watching, await as_seen(broker, delivery))
            except Exception as error:  # noqa: BLE001 - no failure of the publish, whatever a decoder makes of it
                self._failed(error)

    async def _show(self, watching: list[tuple[OutboxBroker, OutboxPublisher]], seen: OutboxMessage) -> None:
        for broker, publisher in watching:
            # So that an assertion may ask for context={"message.timer_id": ...}.
            with broker.context.scope("message", seen):
                await publisher._recorder.record(seen)


def as_delivered(message: Message, id_: int, now: datetime) -> Delivery:
    """The message as a worker would get it."""
    return Delivery(
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


async def as_seen(broker: OutboxBroker, delivery: Delivery) -> OutboxMessage:
    """The delivery as a handler of this broker would see it."""
    producer, codec = broker.config.producer, broker.config.broker_codec
    seen = cast("OutboxMessage", await producer._parser(Received(delivery, broker.store)))
    seen.set_decoder(producer._decoder if codec is None else codec.decode)
    return seen


def _decoded(broker: OutboxBroker, delivery: Delivery) -> Any:
    async def decode() -> Any:
        return await (await as_seen(broker, delivery)).decode()

    # A decoder may wait for something, and a property cannot: another thread waits for it.
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(asyncio.run, decode()).result()
        except Exception:  # noqa: BLE001 - then it is shown as it is
            return delivery.body


def _due(message: Message, now: datetime) -> datetime:
    if isinstance(message.due, datetime):
        return max(message.due.astimezone(UTC), now)
    return now + max(message.due or timedelta(0), timedelta(0))


class RecordingProducer(OutboxProducer):
    """Publishes for real, and keeps what was published."""

    __slots__ = ("_broker", "_record")

    def __init__(self, broker: OutboxBroker, record: Record) -> None:
        super().__init__(
            broker.store,
            parser=broker._parser,
            decoder=broker._decoder,
            observer=observer_of(broker),
        )
        self._broker = broker
        self._record = record

    async def _stored(self, messages: list[Message], ids: list[int]) -> None:
        await super()._stored(messages, ids)
        now = datetime.now(UTC)
        for message, id_ in zip(messages, ids, strict=True):
            await self._record.note(self._broker, message, id_, now)


def observer_of(broker: OutboxBroker) -> Observer:
    """The observer of this broker."""
    return cast("OutboxBrokerConfig", broker.config.broker_config).observer
