"""What a message goes through under the test broker: the same as in earnest, and as often."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from faststream import BaseMiddleware

from nightmail import OutboxBroker, TestOutboxBroker
from nightmail.broker._upstream import DefaultCodec
from nightmail.observe import Observer

Original = Callable[[Any], Awaitable[Any]]


class Counting(DefaultCodec):
    """Counts how often it decodes."""

    def __init__(self) -> None:
        self.decoded = 0

    async def decode(self, msg: Any) -> Any:
        self.decoded += 1
        return await super().decode(msg)


class Broken(DefaultCodec):
    """Encodes, and cannot decode."""

    async def decode(self, msg: Any) -> Any:
        raise ValueError("cannot")


async def test_a_parser_of_the_broker_runs_once_for_each_delivery() -> None:
    parsed = []

    async def parser(msg: Any, original: Original) -> Any:
        parsed.append(msg)
        return await original(msg)

    broker = OutboxBroker("memory://", logger=None, parser=parser)

    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    async with TestOutboxBroker(broker):
        await broker.publish("tea", "q")

    assert len(parsed) == 1


@pytest.mark.parametrize("synchronous", [False, True])
async def test_a_decoder_of_the_broker_runs_once_for_each_delivery(synchronous: bool) -> None:
    decoded = []

    async def decoder(msg: Any, original: Original) -> Any:
        decoded.append(msg)
        return await original(msg)

    def decoder_at_once(msg: Any) -> Any:
        decoded.append(msg)
        return msg.body.decode()

    broker = OutboxBroker("memory://", logger=None, decoder=decoder_at_once if synchronous else decoder)

    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    tb = TestOutboxBroker(broker)
    async with tb:
        await broker.publish("tea", "q")
        assert len(decoded) == 1
        assert [each.body for each in tb.published] == ["tea"]
        assert [each.body for each in tb.published] == ["tea"]

    assert len(decoded) == 2


async def test_a_codec_of_the_broker_decodes_once_for_each_delivery() -> None:
    codec = Counting()
    broker = OutboxBroker("memory://", logger=None, codec=codec)

    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    async with TestOutboxBroker(broker):
        await broker.publish("tea", "q")

    assert codec.decoded == 1


@pytest.mark.parametrize("step", ["parser", "decoder", "codec"])
@pytest.mark.parametrize("watched", [False, True])
async def test_what_a_parser_decoder_or_codec_of_the_broker_raises_stays_where_errors_are_kept(
    step: str, watched: bool
) -> None:
    async def broken(msg: Any, original: Original) -> Any:
        raise ValueError("cannot")

    options: dict[str, Any] = {step: Broken() if step == "codec" else broken}
    broker = OutboxBroker("memory://", logger=None, **options)
    publisher = broker.publisher("q" if watched else "other")

    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb:
        await broker.publish("tea", "q")

        assert [letter.reason for letter in await tb.dead_letters()] == ["undecodable"]
        assert [each.body for each in tb.published] == [b"tea"]
        assert publisher.mock is not None
        assert not publisher.mock.called

    assert tb.errors


@pytest.mark.parametrize("with_real", [False, True])
async def test_an_observer_hears_what_is_published(with_real: bool) -> None:
    class Hears(Observer):
        def __init__(self) -> None:
            self.heard: list[tuple[str, int]] = []

        def published(self, queue: str, count: int) -> None:
            self.heard.append((queue, count))

    hears = Hears()
    broker = OutboxBroker("memory://", logger=None, observer=hears)

    @broker.subscriber("q")
    async def handle(body: str) -> str:
        return body

    async with TestOutboxBroker(broker, with_real=with_real):
        await broker.publish("tea", "q")
        await broker.publish_batch("a", "b", queue="later")

    assert hears.heard == [("q", 1), ("later", 2)]


async def test_the_answer_to_a_request_goes_through_the_middlewares() -> None:
    class Doubles(BaseMiddleware):
        async def on_receive(self) -> None:
            received: Any = self.msg
            received.delivery = replace(received.delivery, body=received.delivery.body * 2)

        async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
            msg.body *= 2
            return await call_next(msg)

    broker = OutboxBroker("memory://", logger=None, middlewares=[Doubles])

    @broker.subscriber("q")
    async def handle(body: str) -> str:
        return body

    async with TestOutboxBroker(broker) as tested_broker:
        tested: Any = tested_broker  # Whose type says that a real one does not answer.
        answer: Any = await tested.request("x", "q")

        assert await answer.decode() == "x" * 16


class Batching(DefaultCodec):
    """Encodes and decodes batches as one."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    async def encode_batch(
        self, msgs: Sequence[Any], serializer: Any = None
    ) -> list[tuple[bytes, str | None]]:
        self.calls.append(("encode", len(msgs)))
        return [await self.encode(each, serializer) for each in msgs]

    async def decode_batch(self, msg: Any) -> list[Any]:
        self.calls.append(("decode", len(msg.body)))
        if any(body == b"poison" for body in msg.body):
            raise ValueError("one of them")
        return [body.decode() for body in msg.body]

    async def decode(self, msg: Any) -> Any:
        if msg.body == b"poison":
            raise ValueError("this one")
        return await super().decode(msg)


async def test_a_codec_for_batches_encodes_and_decodes_them_as_one() -> None:
    codec, seen = Batching(), []
    broker = OutboxBroker("memory://", logger=None, codec=codec)

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str]) -> None:
        seen.append(bodies)

    async with TestOutboxBroker(broker):
        await broker.publish_batch("a", "b", "c", queue="q")

    assert seen == [["a", "b", "c"]]
    assert codec.calls == [("encode", 3), ("decode", 3)]


async def test_a_batch_that_cannot_be_decoded_as_one_is_decoded_one_by_one() -> None:
    seen = []
    broker = OutboxBroker("memory://", logger=None, codec=Batching())

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str]) -> None:
        seen.append(bodies)

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb:
        await broker.publish_batch("a", "poison", "c", queue="q")

        assert [letter.body for letter in await tb.dead_letters()] == [b"poison"]

    assert seen == [["a", "c"]]


@pytest.mark.parametrize("level", ["broker", "subscriber"])
async def test_a_batch_needs_a_codec_for_batches(level: str) -> None:
    codec: Any = DefaultCodec()
    broker = OutboxBroker("memory://", logger=None, codec=codec if level == "broker" else None)

    @broker.subscriber("q", batch=True, codec=codec if level == "subscriber" else None)
    async def handle(bodies: list[str]) -> None: ...

    with pytest.raises(ValueError, match="BatchCodecProto"):
        async with TestOutboxBroker(broker):
            pass
    with pytest.raises(ValueError, match="BatchCodecProto"):
        await broker.start()
    await broker.stop()
