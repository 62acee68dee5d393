"""Passes messages on to another broker as they are; they are acknowledged only once it has taken them.

Each system gets body and headers untouched, and an id that is the same for every delivery of a message, in the place
where the other side looks for one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from typing import Any, Final

from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy
from faststream.response import PublishCommand, PublishType, Response

from nightmail.broker._upstream import PublisherUsecase
from nightmail.broker.commands import OutboxPublishCommand
from nightmail.broker.message import OutboxMessage
from nightmail.broker.options import RelayOptions, SubscriberOptions
from nightmail.broker.parser import parse_delivery
from nightmail.message import RELAYED_ID, DeadDelivery, Delivery

MESSAGE_ID: Final = RELAYED_ID
"""The header that tells a repeated message from a new one, where the other side has no place of its own for that."""

NATS_ID: Final = "Nats-Msg-Id"
"""The header by which JetStream drops what it has seen."""

_OURS: Final = ("content-type", "correlation_id", "reply_to", MESSAGE_ID)
"""Headers of the envelope: they describe the message and are not its publisher's.

The id from an earlier relay too: two messages with the same id, because the headers were copied, would be taken for
one, and one of them dropped.
"""

_COMMANDS_OF_OTHERS: Final = re.compile(
    r"cc|bcc|x-delay|x-death|x-(?:first|last)-death-.*|x-stream-filter-value|x-deduplication-header|nats-.*",
    re.IGNORECASE,
)
"""Headers that the other side obeys: copies to other queues, delays, a stream that is emptied.

A publisher here may not be permitted all that there, so they are not passed on.
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST_ID: Final = 255  # RabbitMQ's limit for a message id.
_LONGEST_PREFIX: Final = 64


# ── a whole message, without a handler ─────────────────────────────────────────────────────────────────────────


def subscriber_options(options: RelayOptions) -> SubscriberOptions:
    """How the subscriber behind a relay is declared."""
    own = RelayOptions.__annotations__.keys() - {"id_prefix"}
    given: SubscriberOptions = {name: options[name] for name in own if name in options}  # type: ignore[literal-required, assignment]
    return {
        **given,
        # A broker may have other defaults for its handlers, and each of them could lose a message here.
        "ack_policy": AckPolicy.NACK_ON_ERROR,
        "parser": parse_delivery,
        "decoder": _undecoded,
        # The receiver of the message answers it.
        "no_reply": True,
    }


def passing_on(to: PublisherUsecase, id_prefix: str = "") -> Callable[[Any], Awaitable[Any]]:
    """A handler that returns its message as `to` is to publish it."""
    check_publisher(to)
    _check_prefix(id_prefix)
    system = system_of(to)
    command = _COMMANDS.get(system, partial(_command_with_an_id_in, MESSAGE_ID))

    # `Any`: FastStream need not validate what we pass to ourselves.
    async def relay(message: Any) -> Any:
        return _Relayed(_Parcel.of(message, id_prefix), command)

    return relay


def check_publisher(to: PublisherUsecase) -> None:
    """Refuse what would take messages without keeping them: they would be acknowledged here, and gone."""
    if not isinstance(to, PublisherUsecase):
        raise SetupError(
            f"`to` must be a publisher, such as rabbit.publisher('orders'), not {type(to).__name__}"
        )
    system = system_of(to)
    if system == "nats" and not getattr(to, "stream", None):
        raise SetupError(
            "NATS acknowledges nothing without JetStream: declare the publisher with its stream, "
            "nats.publisher('orders', stream='orders')"
        )
    if system == "redis" and hasattr(type(to), "channel"):
        raise SetupError(
            "a channel of Redis keeps nothing for who does not listen at that moment: "
            "relay to a stream or a list, redis.publisher(stream='orders')"
        )


async def _undecoded(message: OutboxMessage) -> OutboxMessage:
    """The message itself: a body that is not read here need not be readable."""
    return message


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A message of ours, as it leaves."""

    id: str
    body: bytes
    headers: Mapping[str, Any]
    content_type: str | None
    correlation_id: str
    reply_to: str
    ordering_key: str | None
    priority: int

    @classmethod
    def of(cls, message: OutboxMessage, id_prefix: str) -> _Parcel:
        delivery = message.delivery
        return cls(
            id=relayed_id(delivery, id_prefix),
            body=delivery.body,
            headers=without_envelope(message.headers),
            content_type=message.content_type,
            correlation_id=message.correlation_id,
            reply_to=message.reply_to,
            ordering_key=delivery.ordering_key,
            priority=delivery.priority,
        )


class _Relayed(Response):
    """A parcel on its way through FastStream."""

    def __init__(self, parcel: _Parcel, command: Callable[[_Parcel], PublishCommand]) -> None:
        super().__init__(parcel.body, correlation_id=parcel.correlation_id)
        self._parcel = parcel
        self._command = command

    def as_publish_command(self) -> PublishCommand:
        return self._command(self._parcel)


def relayed_id(delivery: Delivery, prefix: str = "", to: str = "") -> str:
    """Which message this is, for the other side: the same at every delivery, and never that of another message.

    It includes the publish time, which distinguishes the messages of two stores that feed one broker, those of a store
    that was recreated, and a timer from its replacement. `to` distinguishes several results of one message.
    """
    number = delivery.message_id if isinstance(delivery, DeadDelivery) else delivery.id
    middle = f":{number}:{(delivery.published_at - _EPOCH) // _MICROSECOND}"
    whole = prefix + delivery.queue + middle + (to and f":{to}")
    if len(whole) <= _LONGEST_ID and whole.isascii() and whole.isprintable():
        return whole
    return prefix + _digest(delivery.queue) + middle + (to and f":{_digest(to)}")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _check_prefix(prefix: str) -> None:
    if len(prefix) > _LONGEST_PREFIX or not (prefix.isascii() and prefix.isprintable()):
        raise ValueError(f"id_prefix must be at most {_LONGEST_PREFIX} printable ASCII characters")


# ── what each system makes of it ───────────────────────────────────────────────────────────────────────────────


def _rabbit_command(parcel: _Parcel) -> PublishCommand:
    options: dict[str, Any] = {
        "content_type": parcel.content_type,
        "message_id": parcel.id,
        # Else RabbitMQ confirms it and loses it at a restart.
        "persist": True,
        "priority": parcel.priority or None,
    }
    made: PublishCommand = import_module("faststream.rabbit.response").RabbitPublishCommand(
        parcel.body,
        headers=without_commands(parcel.headers),
        correlation_id=parcel.correlation_id,
        reply_to=parcel.reply_to,
        # What is not known is left to the publisher's own options.
        **{name: value for name, value in options.items() if value is not None},
        _publish_type=PublishType.PUBLISH,
    )
    return made


def _kafka_command(system: str, parcel: _Parcel) -> PublishCommand:
    made: PublishCommand = import_module(f"faststream.{system}.response").KafkaPublishCommand(
        parcel.body,
        topic="",
        key=None if parcel.ordering_key is None else parcel.ordering_key.encode(),
        headers=_headers(parcel, MESSAGE_ID),
        correlation_id=parcel.correlation_id,
        reply_to=parcel.reply_to,
        _publish_type=PublishType.PUBLISH,
    )
    return made


def _outbox_command(parcel: _Parcel) -> PublishCommand:
    envelope = {} if parcel.content_type is None else {"content-type": parcel.content_type}
    return OutboxPublishCommand(
        (parcel.body,),
        "-",
        {
            "headers": {**parcel.headers, **envelope, MESSAGE_ID: parcel.id},
            "correlation_id": parcel.correlation_id,
            "reply_to": parcel.reply_to,
            "ordering_key": parcel.ordering_key,
            "priority": parcel.priority,
        },
    )


def _command_with_an_id_in(header: str, parcel: _Parcel) -> PublishCommand:
    return PublishCommand(
        parcel.body,
        headers=_headers(parcel, header),
        correlation_id=parcel.correlation_id,
        reply_to=parcel.reply_to,
        _publish_type=PublishType.PUBLISH,
    )


_COMMANDS: Final[dict[str, Callable[[_Parcel], PublishCommand]]] = {
    "rabbit": _rabbit_command,
    "nats": partial(_command_with_an_id_in, NATS_ID),
    "kafka": partial(_kafka_command, "kafka"),
    "confluent": partial(_kafka_command, "confluent"),
    "nightmail": _outbox_command,
}


def _headers(parcel: _Parcel, id_header: str) -> dict[str, str]:
    """For a system whose headers are text, the content type among them."""
    envelope = {} if parcel.content_type is None else {"content-type": parcel.content_type}
    return {**as_text(without_commands(parcel.headers)), **envelope, id_header: parcel.id}


def as_text(headers: Mapping[str, Any]) -> dict[str, str]:
    """For a system whose headers are text."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in headers.items()}


def without_envelope(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that a message's publisher gave it."""
    return {name: value for name, value in headers.items() if name not in _OURS}


def without_commands(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Of these, what another system does not take for a command."""
    return {name: value for name, value in headers.items() if not is_command(name)}


def is_command(header: str) -> bool:
    """Whether another system obeys this header."""
    return _COMMANDS_OF_OTHERS.fullmatch(header) is not None


def system_of(thing: object) -> str:
    """Where this publisher or command belongs: to a part of FastStream, to us (`nightmail`), or nowhere we know."""
    return _system_in(tuple(base.__module__ for base in type(thing).__mro__))


@cache
def _system_in(modules: tuple[str, ...]) -> str:
    for module in modules:
        package, _, rest = module.partition(".")
        if package == "faststream" and not rest.startswith(("_internal", "response")):
            return rest.partition(".")[0]
        if package == "nightmail":
            return package
    return ""
