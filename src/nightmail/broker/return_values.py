"""What a handler returned, on its way to another broker through a publisher that decorates the handler.

    store ──claim──▶ handler ──its return value──▶ the other broker ──taken──▶ acknowledged here
                                        ╰──────── refused, lost, no answer ──▶ retried by the policy

FastStream publishes what a handler returned before its message is acknowledged, and a publish that fails is the
handler's failure. Here is what it leaves open: that a message which RabbitMQ could not route counts as published, that
headers stay behind, and that the other side cannot tell what was made of a repeated message from what is new.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from faststream.middlewares import BaseMiddleware
from faststream.response import PublishCommand, ensure_response

from nightmail.broker.decisions import is_answer
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.broker.relay import NATS_ID, as_text, is_command, relayed_id, system_of, without_envelope
from nightmail.errors import LeaseLost, NotTaken
from nightmail.message import DeadDelivery, Delivery

if TYPE_CHECKING:
    from faststream.message import StreamMessage

    from nightmail.broker._upstream import BrokerMiddleware, ContextRepo


def relaying_middlewares(
    publishers: Iterable[object], *, propagate_headers: bool
) -> tuple[Sequence[BrokerMiddleware[Any]], Sequence[BrokerMiddleware[Any]]]:
    """What a subscriber needs around and inside its own middlewares, for handlers whose return values these publish.

    Headers are added outside all other middlewares, which still get what the handler returned. An id is set innermost,
    where it is known that there is none yet, and the other broker's answer is read where no middleware can hide it.
    """
    outermost = [PropagatesHeaders] if propagate_headers else []
    innermost = [ForeignPublish] if any(system_of(each) != "nightmail" for each in publishers) else []
    return outermost, innermost


class ForeignPublish(BaseMiddleware):
    """Sets the id of what goes to another broker, and fails when that did not take it."""

    def __init__(self, msg: Any, /, *, context: ContextRepo) -> None:
        super().__init__(msg, context=context)
        self._message: Received | ReceivedBatch = msg
        self._destinations: list[str] = []

    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: PublishCommand) -> Any:
        if is_answer(cmd.body):
            return None  # An outcome is for the worker only, not to be published.
        self._identify(cmd)
        try:
            result = await call_next(cmd)
        except LeaseLost as lost:
            if any(item.delivery.id in lost.ids for item in self._message.items):
                raise
            # Another lease. Taken for a lost lease of ours, it would leave the message unsettled until its lease ends.
            raise NotTaken("the other side has lost a lease of its own: the message is retried") from lost
        if system_of(cmd) == "rabbit" and isinstance(result, import_module("aiormq.abc").DeliveredMessage):
            # RabbitMQ confirms what it cannot route, after giving it back; aio-pika hands us that as a result.
            raise NotTaken
        return result

    def _identify(self, cmd: Any) -> None:
        """Set an id, where the other system has a place for one, unless it has one already."""
        # A batch may be composed differently on redelivery, and a message that is to be redelivered is not finished: in
        # both cases what is published next must not be taken for this.
        if isinstance(self._message, ReceivedBatch) or not self._message.result.may_be_done:
            return
        delivery = self._message.delivery
        match system_of(cmd):
            case "nats" if not cmd.headers.get(NATS_ID):
                cmd.headers = {**cmd.headers, NATS_ID: self._id(delivery, cmd.destination)}
            case "rabbit" if isinstance(cmd.body, import_module("aio_pika").Message):
                # It goes as it is, so the options do not count. A copy: a handler may return the same every time.
                if not cmd.body.message_id:
                    cmd.body = copy.copy(cmd.body)
                    cmd.body.message_id = self._id(delivery, _routed(cmd))
            case "rabbit" if not cmd.message_options.get("message_id"):
                cmd.message_options = {**cmd.message_options, "message_id": self._id(delivery, _routed(cmd))}

    def _id(self, delivery: Delivery, destination: str) -> str:
        """The id of what is made of this for that destination: its publishers may feed one stream.

        Their order would tell them apart too, but changes with the code: then what goes to one could be taken for what
        has gone to another, and be dropped. It counts only among those that have the same destination.
        """
        before = self._destinations.count(destination)
        self._destinations.append(destination)
        to = f"{destination}#{before + 1}" if before else destination
        # The result of a dead letter is not that of the message, which may have been published just before it died.
        return relayed_id(delivery, to=f"dead:{to}" if isinstance(delivery, DeadDelivery) else to)


def _routed(cmd: Any) -> str:
    exchange, key = cmd.exchange.name, cmd.destination
    return f"{exchange}/{key}" if exchange else key


class PropagatesHeaders(BaseMiddleware):
    """Copies the headers of a message to what its handler returns, whose own headers take precedence.

    What another system would take for a command stays behind. So does an id for JetStream, as ours does: it named the
    message that it came with, not what was made of it.
    """

    def __init__(self, msg: Any, /, *, context: ContextRepo) -> None:
        super().__init__(msg, context=context)
        self._commands: dict[str, Any] = {}

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
        # A copy: a handler may return the same object every time.
        response = copy.copy(ensure_response(await call_next(msg)))
        going_on = without_envelope(msg.headers)
        going_on.pop(NATS_ID, None)
        own = response.headers
        self._commands = {
            name: value for name, value in going_on.items() if is_command(name) and name not in own
        }
        response.headers = {**going_on, **own}
        return response

    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: PublishCommand) -> Any:
        system = system_of(cmd)
        if system != "nightmail" and self._commands:
            cmd.headers = {name: value for name, value in cmd.headers.items() if name not in self._commands}
        if system not in ("rabbit", "nightmail"):
            cmd.headers = as_text(cmd.headers)
        return await call_next(cmd)
