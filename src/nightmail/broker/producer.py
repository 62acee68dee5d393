"""Encodes what is published and hands it to the store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from faststream.exceptions import FeatureNotSupportedException
from faststream.message import encode_message

from nightmail.broker._upstream import (
    BatchCodecProto,
    CodecProto,
    DefaultCodec,
    ParserComposition,
    ProducerProto,
)
from nightmail.broker.commands import OutboxPublishCommand
from nightmail.broker.parser import decode_body, parse_delivery
from nightmail.broker.sessions import current_session
from nightmail.broker.sync_sessions import carried_out
from nightmail.engine.current import own_delivery
from nightmail.errors import CannotJoin, OtherDatabase
from nightmail.message import Message
from nightmail.observe import Observer
from nightmail.store import Blocking, Store

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto

    from nightmail.broker._upstream import CustomCallable


class OutboxProducer(ProducerProto[OutboxPublishCommand]):
    """The last stop of a publish before the store."""

    __slots__ = ("_decoder", "_observer", "_parser", "_serializer", "_store", "codec")

    def __init__(
        self,
        store: Store,
        *,
        parser: CustomCallable | None,
        decoder: CustomCallable | None,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._observer = observer or Observer()
        self._parser = ParserComposition(parser, parse_delivery)
        self._decoder = ParserComposition(decoder, decode_body)
        self._serializer: SerializerProto | None = None
        self.codec: CodecProto = DefaultCodec()

    def connect(self, serializer: SerializerProto | None, codec: CodecProto | None) -> None:
        """Take what the application decided after the broker was made."""
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    async def publish(self, cmd: OutboxPublishCommand) -> int | None:
        """Store one message; its id, or `None` when a conflict stored nothing."""
        body, content_type = await self._encode(cmd.body)
        message = Message(body=body, **cmd.fields(content_type))
        session = cmd.session
        own = own_delivery(self._store, message.queue, message.timer_id)
        if own is not None and session is None and current_session() is not None:
            # This publish would wait for its own handler until that times out.
            raise ValueError(
                "this timer's own message is locked by your OutboxSession: publish it there, with session=session"
            )
        try:
            if isinstance(session, Blocking):
                verb = partial(self._store.publish, message, transaction=session, own=own)
                stored = await carried_out(session, verb)
            else:
                stored = await self._store.publish(message, transaction=session, own=own)
        except (OtherDatabase, CannotJoin):
            if not cmd.may_leave_session:
                raise
            # Refused before anything was written: the handler's transaction is not affected.
            stored = await self._store.publish(message)
        if stored is not None:
            await self._stored([message], [stored])
        return stored

    async def publish_batch(self, cmd: OutboxPublishCommand) -> list[int]:
        """Store all or none; their ids."""
        messages = await self.encoded(cmd)
        publish = partial(self._store.publish_batch, messages, transaction=cmd.session)
        stored = await carried_out(cmd.session, publish)
        if stored:
            await self._stored(messages, stored)
        return stored

    async def encoded(self, cmd: OutboxPublishCommand) -> list[Message]:
        """The messages that a command asks to store."""
        bodies = cmd.batch_bodies
        if not bodies:
            cmd.check()
        if len(bodies) < 2 or not isinstance(self.codec, BatchCodecProto):
            return cmd.messages([await self._encode(body) for body in bodies])
        try:
            encoded = await self.codec.encode_batch(bodies, self._serializer)
            pairs = [pair for pair, _ in zip(encoded, bodies, strict=True)]
        except Exception as error:
            raise _not_encodable(bodies[0], error) from error
        return cmd.messages(pairs)

    async def _encode(self, body: Any) -> tuple[bytes, str | None]:
        try:
            if type(self.codec) is DefaultCodec:
                # All that its coroutine does.
                return encode_message(body, self._serializer)
            return await self.codec.encode(body, self._serializer)
        except Exception as error:
            raise _not_encodable(body, error) from error

    async def _stored(self, messages: list[Message], ids: list[int]) -> None:
        """These were stored, all in one queue, under these ids."""
        self._observer.published(messages[0].queue, len(ids))

    async def request(self, cmd: OutboxPublishCommand) -> Any:
        """Not offered: a durable message may be handled days later, when nothing waits for an answer."""
        raise FeatureNotSupportedException(
            "OutboxBroker has no request(): give reply_to a queue and subscribe to the answers"
        )


def _not_encodable(body: Any, error: Exception) -> TypeError:
    """What a codec raised, without the body, which may hold secrets."""
    return TypeError(
        f"a {type(body).__name__} cannot be encoded ({type(error).__name__}): "
        "publish what JSON can hold, a str or bytes"
    )
