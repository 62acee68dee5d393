"""From a delivery to FastStream's message, and from its body to what the handler asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from faststream.exceptions import SkipMessage
from faststream.message import StreamMessage
from faststream.message.utils import decode_message

from nightmail.broker._upstream import AsyncCallable
from nightmail.broker.message import OutboxBatchMessage, OutboxMessage, correlation_of
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.errors import Undecodable
from nightmail.outcome import Dead, Reason

Describe: TypeAlias = Callable[[Exception], str | None]
"""What a dead letter says of an error."""


async def parse_delivery(received: Received) -> OutboxMessage:
    """The message as handlers, filters and middlewares see it."""
    delivery = received.delivery
    try:
        headers = delivery.headers
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"the stored headers cannot be decoded: {type(error).__name__}") from error
    return OutboxMessage(
        received,
        delivery.body,
        headers=headers,
        reply_to=headers.get("reply_to") or "",
        content_type=headers.get("content-type"),
        correlation_id=correlation_of(headers, delivery),
        message_id=str(delivery.id),
    )


async def parse_received(received: Received | ReceivedBatch) -> OutboxMessage | OutboxBatchMessage:
    """One message or several, without anybody's own parser."""
    if isinstance(received, ReceivedBatch):
        return await parse_batch(received, parse_delivery, repr)
    return await parse_delivery(received)


async def parse_batch(batch: ReceivedBatch, parse: AsyncCallable, describe: Describe) -> OutboxBatchMessage:
    """Several messages as one, each of them as `parse` makes it. What cannot be parsed is left out, and buried."""
    items = await _those_that_can(batch.items, parse, describe)
    first = items[0] if items else None
    message = OutboxBatchMessage(
        batch,
        [item.body for item in items],
        headers={} if first is None else first.headers,
        batch_headers=[item.headers for item in items],
        content_type=None if first is None else first.content_type,
        correlation_id="" if first is None else first.correlation_id,
        message_id="" if first is None else first.message_id,
    )
    message.items = items
    return message


async def decode_batch(message: OutboxBatchMessage, decode: AsyncCallable, describe: Describe) -> list[Any]:
    """What each of the messages says. What cannot be decoded is left out of `items` too, and buried."""
    bodies: list[Any] = []

    async def take(item: OutboxMessage) -> OutboxMessage:
        bodies.append(await decode(item))
        return item

    message.items = await _those_that_can(message.items, take, describe)
    if not bodies:
        raise Undecodable("none of these messages can be decoded")
    return bodies


async def _those_that_can(items: Sequence[Any], step: AsyncCallable, describe: Describe) -> list[Any]:
    taken = []
    for item in items:
        received = item if isinstance(item, Received) else item.raw_message
        try:
            taken.append(await step(item))
        except SkipMessage as skipped:
            received.fail(skipped)
        except Undecodable as error:
            received.judge(Dead(Reason.UNDECODABLE, describe(error), ran=False))
    return taken


async def decode_body(message: StreamMessage[Any]) -> Any:
    """The body by its content type: JSON, text or bytes. Never anything that runs code."""
    return decode_message(message)
