"""Parsers and decoders: FastStream's scenarios of this name, on real stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.support import Make, Options, started
from tests.faststream.support import Calls, on_every_store


def tapping(calls: Calls) -> Callable[..., Any]:
    """A parser, or a decoder, that tells of every call and leaves the work to the usual one."""

    async def tap(msg: Any, original: Any) -> Any:
        result = await original(msg)
        calls("tapped")
        return result

    return tap


def plain_decoder(msg: Any) -> Any:
    """Synchronous, and without the usual one."""
    return f"decoded {msg.body.decode()}"


@on_every_store
@pytest.mark.parametrize("what", ["parser", "decoder"])
async def test_a_subscriber_has_its_own(make: Make, calls: Calls, what: str) -> None:
    broker, options = make(), Options({what: tapping(calls)})
    broker.subscriber("q", **options)(calls.handler)

    async with started(broker):
        await broker.publish(b"hello", "q")

        assert await calls.times(2) == ["tapped", b"hello"]


@pytest.mark.parametrize("what", ["parser", "decoder"])
async def test_the_brokers_holds_for_all(make: Make, calls: Calls, what: str) -> None:
    broker = make(**{what: tapping(calls)})
    broker.subscriber("q")(calls.handler)

    async with started(broker):
        await broker.publish(b"hello", "q")

        assert await calls.times(2) == ["tapped", b"hello"]


@pytest.mark.parametrize("place", ["broker", "subscriber"])
async def test_a_decoder_may_be_synchronous(make: Make, calls: Calls, place: str) -> None:
    decoding = Options(decoder=plain_decoder)
    broker = make(**(decoding if place == "broker" else {}))
    broker.subscriber("q", **(decoding if place == "subscriber" else {}))(calls.handler)

    async with started(broker):
        await broker.publish(b"hello", "q")

        assert await calls.times(1) == ["decoded hello"]


async def test_subscribers_do_not_share_theirs(make: Make, calls: Calls) -> None:
    broker = make()
    broker.subscriber("a", parser=tapping(calls))(calls.handler)
    broker.subscriber("b")(calls.handler)

    async with started(broker):
        await broker.publish(b"in a", "a")
        await calls.times(2)
        await broker.publish(b"in b", "b")

        assert await calls.times(3) == ["tapped", b"in a", b"in b"]


async def test_handlers_of_one_subscriber_do_not_share_theirs(make: Make, calls: Calls) -> None:
    broker = make()
    subscriber = broker.subscriber("q")
    subscriber(calls.handler, filter=lambda msg: msg.content_type == "application/json")
    subscriber(calls.handler, parser=tapping(calls))

    async with started(broker):
        await broker.publish({"msg": "hello"}, "q")
        await calls.times(1)
        await broker.publish(b"hello", "q")

        assert await calls.times(3) == [{"msg": "hello"}, "tapped", b"hello"]


async def test_iterating_decodes_only_when_asked_to(make: Make, calls: Calls) -> None:
    async with make() as broker:
        await broker.publish(b"hello", "q")

        async for message in broker.subscriber("q", decoder=tapping(calls)):
            assert calls.made == []
            assert await message.decode() == b"hello"
            await message.ack()
            break

    assert calls.made == ["tapped"]


async def test_taking_one_decodes_only_when_asked_to(make: Make, calls: Calls) -> None:
    async with make() as broker:
        await broker.publish(b"hello", "q")

        message = await broker.subscriber("q", decoder=tapping(calls)).get_one()

        assert message is not None
        assert calls.made == []
        assert await message.decode() == b"hello"
        await message.ack()

    assert calls.made == ["tapped"]


async def test_a_batch_is_parsed_and_decoded_one_by_one(make: Make, calls: Calls) -> None:
    broker = make(decoder=tapping(calls))
    broker.subscriber("q", batch=True)(calls.handler)

    async with broker:
        await broker.publish_batch(b"a", b"b", queue="q")
        await broker.start()

        assert await calls.times(3) == ["tapped", "tapped", [b"a", b"b"]]
