"""From a delivery to FastStream's message, and from its body to what the handler asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from faststream.exceptions import SkipMessage
from faststream.message import StreamMessage
from faststream.message.utils import decode_message

from nightmail.broker._upstream import AsyncCallable, ContentTypes, json_loads
from nightmail.broker.message import OutboxBatchMessage, OutboxMessage, headers_of, message_of
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.errors import Undecodable
from nightmail.outcome import Dead, Reason

JSON: Final = ContentTypes.JSON.value

Describe: TypeAlias = Callable[[Exception], str | None]
"""What a dead letter says about an error."""


async def parse_delivery(received: Received) -> OutboxMessage:
    """The message as handlers, filters and middlewares see it."""
    return message_of(received)


async def parse_batch(batch: ReceivedBatch, parse: AsyncCallable, describe: Describe) -> OutboxBatchMessage:
    """Several messages as one, each as `parse` makes it. What cannot be parsed is left out, a dead letter."""
    if parse is not parse_delivery:
        return OutboxBatchMessage(batch, items=await _those_that_can(batch.items, parse, describe))
    unparsed = {}
    types: dict[str, str | None] = {}  # By the headers: most messages of a queue have the same.
    for received in batch.items:
        headers = received.delivery.encoded_headers
        try:
            if headers not in types:
                types[headers] = headers_of(received.delivery).get("content-type")
            unparsed[received] = types[headers]
        except Undecodable as error:
            _bury(received, error, describe)
    return OutboxBatchMessage(batch, unparsed=unparsed)


async def decode_batch(
    message: OutboxBatchMessage,
    decode: AsyncCallable,
    describe: Describe,
    together: AsyncCallable | None = None,
) -> list[Any]:
    """The decoded bodies. What cannot be decoded is left out of `items` too, and becomes a dead letter.

    `together` decodes all at once. Where it fails they are decoded one by one, to find those that it fails for.
    """
    bodies: list[Any] = []
    if together is not None:
        with suppress(Exception):
            bodies = list(await together(message))
            if len(bodies) == len(message.body):
                return bodies
        bodies = []

    async def take(item: OutboxMessage) -> OutboxMessage:
        bodies.append(await decode(item))
        return item

    if decode is _decode_marked and message.unparsed is not None:
        for received, content_type in list(message.unparsed.items()):
            try:
                bodies.append(_decoded(received.delivery.body, content_type))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the same the next time
                _bury(received, error, describe)
                del message.unparsed[received]
    else:
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
            received.result.void(skipped)
        except Undecodable as error:
            _bury(received, error, describe)
    return taken


def _bury(received: Received, error: Exception, describe: Describe) -> None:
    received.result.decide(Dead(Reason.UNDECODABLE, describe(error), ran=False))


async def decode_body(message: StreamMessage[Any]) -> Any:
    """The body by its content type: JSON, text or bytes. Never anything that runs code."""
    # It raises what FastStream's own raises: a custom decoder with a fallback catches that.
    return _decoded(message.body, message.content_type)


def marking(step: AsyncCallable) -> AsyncCallable:
    """`step`, with what it raises marked as undecodable: a second try would raise the same."""
    if step is parse_delivery:
        return step
    if step is decode_body:
        return _decode_marked

    async def marked(message: Any) -> Any:
        try:
            return await step(message)
        except (Undecodable, SkipMessage):
            raise
        except Exception as error:
            raise _undecodable(error) from error

    return marked


async def _decode_marked(message: StreamMessage[Any]) -> Any:
    try:
        return _decoded(message.body, message.content_type)
    except Exception as error:
        raise _undecodable(error) from error


def _undecodable(error: Exception) -> Undecodable:
    return Undecodable(f"decoding raised {type(error).__name__}")


def _decoded(body: bytes, content_type: str | None) -> Any:
    if content_type == JSON:
        return json_loads(body)  # What FastStream does too, with more steps.
    return decode_message(StreamMessage(None, body, content_type=content_type, correlation_id="-"))
