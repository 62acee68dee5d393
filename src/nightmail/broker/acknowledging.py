"""Applies the acknowledgement policy to how a handler ended.

FastStream has a middleware for this. It is left out: here a verdict is only noted, and written by the worker at the
end, and for that the middleware would take a tenth of what a message costs.
"""

from __future__ import annotations

from typing import Final

from faststream.exceptions import AckMessage, HandlerException, NackMessage, RejectMessage
from faststream.middlewares import AckPolicy

from nightmail.broker.message import OutboxBatchMessage, OutboxMessage
from nightmail.broker.received import Nacked, Received, ReceivedBatch
from nightmail.outcome import Dead, Done, Reason

_DONE: Final = Done()


def succeeded(received: Received | ReceivedBatch, policy: AckPolicy) -> None:
    """It returned: success under every policy, but under MANUAL only its own verdict counts."""
    if policy is not AckPolicy.MANUAL:
        received.judge(_DONE)


def failed(received: Received | ReceivedBatch, policy: AckPolicy) -> None:
    """It raised something that is no verdict."""
    if policy is AckPolicy.NACK_ON_ERROR:
        received.judge(Nacked())
    elif policy is AckPolicy.REJECT_ON_ERROR:
        received.judge(Dead(Reason.REJECTED))
    elif policy is AckPolicy.ACK:
        received.judge(_DONE)


async def obey(received: Received | ReceivedBatch, raised: HandlerException) -> None:
    """It raised a verdict, with what the message's own method takes. Raises what that raises."""
    message: OutboxMessage | OutboxBatchMessage
    if isinstance(received, Received):
        message = OutboxMessage(received, received.delivery.body)
    else:
        message = OutboxBatchMessage(received)
    if isinstance(raised, AckMessage):
        await message.ack(**raised.extra_options)
    elif isinstance(raised, NackMessage):
        await message.nack(**raised.extra_options)
    elif isinstance(raised, RejectMessage):
        await message.reject(**raised.extra_options)
    else:
        raise raised  # A user's own subclass. What it means is unknown, so it is a failure.
