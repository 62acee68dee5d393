"""Codecs: FastStream's scenarios of this name, on real stores."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from faststream.message.utils import decode_message, encode_message

from nightmail import OutboxRouter
from nightmail.broker._upstream import DefaultCodec
from tests.broker.support import Heard, Make, started
from tests.faststream.support import Calls, on_every_store


class Zipped:
    """What FastStream does, packed."""

    async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
        body, content_type = encode_message(msg, serializer)
        return zlib.compress(body), content_type

    async def decode(self, msg: Any) -> Any:
        msg.body = zlib.decompress(msg.body)
        return decode_message(msg)

    async def encode_batch(
        self, msgs: Sequence[Any], serializer: Any = None
    ) -> list[tuple[bytes, str | None]]:
        return [await self.encode(each, serializer) for each in msgs]

    async def decode_batch(self, msg: Any) -> list[Any]:
        return [await self.decode(each) for each in msg.items]


@on_every_store
async def test_the_brokers_codec_encodes_and_decodes(make: Make, calls: Calls) -> None:
    broker = make(codec=Zipped())
    broker.subscriber("q")(calls.handler)

    async with broker:
        await broker.publish({"key": "value"}, "q")
        (stored,) = await broker.pending("q")
        assert zlib.decompress(stored.body) == b'{"key":"value"}'
        await broker.start()

        assert await calls.times(1) == [{"key": "value"}]


async def test_a_subscribers_codec_decodes(make: Make, calls: Calls) -> None:
    broker = make()
    broker.subscriber("q", codec=Zipped())(calls.handler)

    async with started(broker):
        await broker.publish(zlib.compress(b"hello"), "q")

        assert await calls.times(1) == [b"hello"]


async def test_a_routers_codec_decodes_for_its_subscribers(make: Make, calls: Calls) -> None:
    broker, router = make(), OutboxRouter(codec=Zipped())
    router.subscriber("q")(calls.handler)
    broker.include_router(router)

    async with started(broker):
        await broker.publish(zlib.compress(b"hello"), "q")

        assert await calls.times(1) == [b"hello"]


async def test_without_a_codec_everything_is_as_usual(make: Make, calls: Calls) -> None:
    broker = make()
    broker.subscriber("q")(calls.handler)

    async with started(broker):
        await broker.publish({"key": "value"}, "q")

        assert await calls.times(1) == [{"key": "value"}]


async def test_a_codec_and_a_decoder_contradict_each_other(make: Make) -> None:
    async def decoder(msg: Any, original: Any) -> Any: ...

    broker = make()
    broker.subscriber("q", codec=Zipped(), decoder=decoder)(Calls().handler)

    with pytest.raises(ValueError, match="codec"):
        await broker.start()
    await broker.stop()


@pytest.mark.parametrize("body", [None, b"raw bytes", "a string", {"json": True, "value": 42}])
async def test_the_usual_codec_stores_what_faststream_encodes(make: Make, body: Any) -> None:
    expected, content_type = encode_message(body, None)

    async with make() as broker:
        await broker.publish(body, "q")

        (stored,) = await broker.pending("q")
        assert stored.body == expected
        assert stored.headers.get("content-type") == content_type


async def test_a_batch_is_encoded_and_decoded_by_the_codec(make: Make, calls: Calls) -> None:
    broker = make(codec=Zipped())
    broker.subscriber("q", batch=True)(calls.handler)

    async with broker:
        await broker.publish_batch("a", "b", queue="q")
        await broker.start()

        assert await calls.times(1) == [["a", "b"]]


async def test_a_codec_that_knows_no_batches_is_refused_for_one(make: Make) -> None:
    broker = make(codec=DefaultCodec())
    broker.subscriber("q", batch=True)(Calls().handler)

    with pytest.raises(ValueError, match="BatchCodecProto"):
        await broker.start()
    await broker.stop()


async def test_the_codec_is_used_for_replies_and_return_values(make: Make, heard: Heard) -> None:
    broker = make(codec=Zipped())

    @broker.publisher("next")
    @broker.subscriber("q")
    async def answer(body: str) -> str:
        return body

    async with started(broker):
        sent = await broker.publish("x", "q", reply_to="replies")
        await heard.until(lambda: bool(heard.of(sent)))

        stored = await broker.pending("next") + await broker.pending("replies")
        assert [zlib.decompress(each.body) for each in stored] == [b"x", b"x"]
