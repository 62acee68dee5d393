"""From a delivery to FastStream's message, and from its body to what the handler asked for."""

from __future__ import annotations

from typing import Any

from faststream.message import StreamMessage
from faststream.message.utils import decode_message

from nightmail.broker.message import OutboxMessage, Received, correlation_of
from nightmail.errors import Undecodable


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


async def decode_body(message: StreamMessage[Any]) -> Any:
    """The body by its content type: JSON, text or bytes. Never anything that runs code."""
    return decode_message(message)
