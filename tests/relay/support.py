"""What the tests of relaying share: reading on the other side, and messages that are worth comparing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aio_pika
import nats
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext

from nightmail import ConstantRetry, OutboxBroker
from nightmail.outcome import Done
from tests.broker.support import Heard

AT_ONCE: Final = ConstantRetry(delay=0, jitter=0, max_attempts=None)
SOON: Final = ConstantRetry(delay=0.2, max_attempts=None)
BYTES: Final = b"\x00\xff not JSON, not text \r\n\x80"
PATIENCE: Final = 60.0


class Patient(Heard):
    """Waits for as long as a server takes to come back."""

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not happened():
                self._news.clear()
                await self._news.wait()


@dataclass(frozen=True)
class Arrived:
    """A message as the other side has it."""

    body: bytes
    id: str | None
    headers: dict[str, Any] = field(default_factory=dict)


def box(heard: Heard, **options: Any) -> OutboxBroker:
    """A broker with an empty store of its own."""
    return OutboxBroker("memory://", logger=None, observer=heard, **options)


def done(heard: Heard) -> int:
    """How many messages were acknowledged here."""
    return sum(isinstance(outcome, Done) for _, outcome in heard.outcomes)


def ids_by_body(arrived: Iterable[Arrived]) -> dict[bytes, list[str | None]]:
    """The ids under which each body arrived, once for every time."""
    found: defaultdict[bytes, list[str | None]] = defaultdict(list)
    for message in arrived:
        found[message.body].append(message.id)
    return dict(found)


# RabbitMQ


@asynccontextmanager
async def rabbit_channel(url: str) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    """A connection that has nothing to do with FastStream."""
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        yield channel


async def declare(url: str, queue: str) -> None:
    """A queue that survives a restart."""
    async with rabbit_channel(url) as channel:
        await channel.declare_queue(queue, durable=True)


async def emptied(url: str, queue: str) -> list[aio_pika.abc.AbstractIncomingMessage]:
    """Everything in this queue, taken."""
    async with rabbit_channel(url) as channel:
        found = await channel.get_queue(queue)
        waiting = found.declaration_result.message_count or 0
        taken: list[aio_pika.abc.AbstractIncomingMessage] = []
        async with found.iterator(no_ack=True) as messages:
            while len(taken) < waiting:
                taken.append(await anext(messages))
        return taken


# NATS


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[JetStreamContext]:
    """A connection that has nothing to do with FastStream."""
    connection = await nats.connect(url)
    try:
        yield connection.jetstream()
    finally:
        await connection.close()


async def read(url: str, stream: str) -> list[Arrived]:
    """Everything in this stream, in its order."""
    async with jetstream(url) as js:
        subject = (await js.stream_info(stream)).config.subjects
        assert subject is not None
        waiting = (await js.stream_info(stream)).state.messages
        subscription = await js.pull_subscribe(subject[0], stream=stream)
        arrived: list[Arrived] = []
        while len(arrived) < waiting:
            try:
                batch = await subscription.fetch(500, timeout=5)
            except NatsTimeoutError:
                break
            for message in batch:
                headers = dict(message.headers or {})
                arrived.append(Arrived(message.data, headers.get("Nats-Msg-Id"), headers))
                await message.ack()
        return arrived
