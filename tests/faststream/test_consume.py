"""Consuming: FastStream's scenarios of this name, on real stores."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faststream import Context, Depends, FastStream, TestApp
from faststream.exceptions import StopConsume
from pydantic import BaseModel

from nightmail import ConstantRetry, OutboxBroker
from nightmail.annotations import OutboxMessage
from tests.broker.support import Heard, Make, started
from tests.faststream.support import Calls, on_every_store


class Parcel(BaseModel):
    weight: int


@on_every_store
async def test_a_message_reaches_its_handler(make: Make, calls: Calls) -> None:
    broker = make()
    broker.subscriber("q")(calls.handler)

    async with started(broker):
        await broker.publish("hello", "q")

        assert await calls.times(1) == ["hello"]


async def test_one_handler_serves_two_subscribers(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("a")
    @broker.subscriber("b")
    async def take(body: str, msg: OutboxMessage) -> None:
        calls(msg.queue, body)

    async with started(broker):
        await broker.publish("one", "a")
        await broker.publish("two", "b")

        assert sorted(await calls.times(2)) == [("a", "one"), ("b", "two")]


@on_every_store
async def test_one_subscriber_serves_several_queues(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("a", "b")
    async def take(body: str, msg: OutboxMessage) -> None:
        calls(msg.queue, body)

    async with started(broker):
        await broker.publish("one", "a")
        await broker.publish("two", "b")

        assert sorted(await calls.times(2)) == [("a", "one"), ("b", "two")]


async def test_two_messages_are_two_calls(make: Make, calls: Calls) -> None:
    broker = make()
    broker.subscriber("q")(calls.handler)

    async with started(broker):
        await asyncio.gather(broker.publish("hello", "q"), broker.publish("hello", "q"))

        assert await calls.times(2) == ["hello", "hello"]


async def test_each_handler_gets_what_is_in_its_queue(make: Make) -> None:
    broker = make()
    first, second = Calls(), Calls()
    broker.subscriber("a")(first.handler)
    broker.subscriber("b")(second.handler)

    async with started(broker):
        await broker.publish("one", "a")
        await broker.publish("two", "b")

        assert await first.times(1) == ["one"]
        assert await second.times(1) == ["two"]


async def test_a_synchronous_handler_will_do(make: Make, calls: Calls) -> None:
    broker = make()
    loop = asyncio.get_running_loop()

    @broker.subscriber("q")
    def take(body: str) -> None:
        # It runs in a thread, from which the test's event must not be set.
        loop.call_soon_threadsafe(calls, body)

    async with started(broker):
        await broker.publish("hello", "q")

        assert await calls.times(1) == ["hello"]


@on_every_store
async def test_the_first_handler_whose_filter_fits_gets_the_message(make: Make) -> None:
    broker = make()
    structured, plain = Calls(), Calls()
    subscriber = broker.subscriber("q")
    subscriber(structured.handler, filter=lambda msg: msg.content_type == "application/json")
    subscriber(plain.handler)

    async with started(broker):
        await broker.publish({"msg": "hello"}, "q")
        await broker.publish("hello", "q")

        assert await structured.times(1) == [{"msg": "hello"}]
        assert await plain.times(1) == ["hello"]


async def test_without_a_serializer_nothing_is_validated_and_dependencies_still_work(
    make: Make, calls: Calls
) -> None:
    broker = make(apply_types=True, serializer=None)

    def text() -> str:
        return "100"

    @broker.subscriber("q")
    async def take(parcel: Parcel, number: int = Depends(text), broker: Any = Context()) -> None:
        calls(parcel, number, broker)

    async with started(broker):
        await broker.publish({"weight": "1"}, "q")

        assert await calls.times(1) == [({"weight": "1"}, "100", broker)]


async def test_without_types_a_handler_gets_the_decoded_body(make: Make, calls: Calls) -> None:
    broker = make(apply_types=False)

    @broker.subscriber("q")
    async def take(parcel: Parcel) -> None:
        calls(parcel)

    async with started(broker):
        await broker.publish({"weight": "1"}, "q")

        assert await calls.times(1) == [{"weight": "1"}]


@on_every_store
async def test_a_subscriber_may_come_after_the_start(make: Make, calls: Calls) -> None:
    async with started(make()) as broker:
        subscriber = broker.subscriber("q")
        subscriber(calls.handler)
        await subscriber.start()
        await broker.publish("hello", "q")

        assert await calls.times(1) == ["hello"]
        await subscriber.stop()


async def test_a_subscriber_may_live_as_long_as_a_block(make: Make, calls: Calls) -> None:
    async with started(make()) as broker:
        subscriber = broker.subscriber("q", persistent=False)
        subscriber(calls.handler)
        async with subscriber:
            await broker.publish("inside", "q")
            assert await calls.times(1) == ["inside"]
        await broker.publish("outside", "q")

        assert not subscriber.running
        assert (await broker.stats())["q"].ready == 1
    assert calls.made == ["inside"]


async def test_one_that_is_not_kept_goes_with_its_last_reference(make: Make) -> None:
    broker = make()
    kept = broker.subscriber("kept")
    broker.subscriber("gone", persistent=False)

    assert broker.subscribers == [kept]


async def test_a_subscriber_with_a_handler_cannot_be_taken_from(make: Make) -> None:
    broker = make()
    subscriber = broker.subscriber("q")

    @subscriber
    async def take(_: Any) -> None: ...

    async with started(broker):
        # FastStream's own brokers have an assertion here, which `python -O` would leave out.
        with pytest.raises(RuntimeError, match="has a handler"):
            await subscriber.get_one(timeout=0)


@on_every_store
async def test_one_message_is_taken_by_hand(make: Make) -> None:
    async with started(make()) as broker:
        waiting = asyncio.create_task(broker.subscriber("q").get_one(timeout=10))
        await asyncio.sleep(0)
        await broker.publish("hello", "q")

        message = await waiting

        assert message is not None
        assert await message.decode() == "hello"
        await message.ack()


async def test_nothing_comes_in_time(make: Make) -> None:
    async with started(make()) as broker:
        assert await broker.subscriber("q").get_one(timeout=1e-24) is None


@on_every_store
async def test_messages_are_iterated_over(make: Make) -> None:
    async with started(make()) as broker:
        await broker.publish_batch("one", "two", queue="q")

        taken: list[Any] = []
        async for message in broker.subscriber("q"):
            taken.append(await message.decode())
            await message.ack()
            if len(taken) == 2:
                break

        assert sorted(taken) == ["one", "two"]
        assert await broker.stats() == {}


async def test_stop_consume_ends_the_subscriber_and_keeps_what_comes_later(
    make: Make, calls: Calls, heard: Heard
) -> None:
    broker = make(retry=ConstantRetry(delay=3600, jitter=0))

    subscriber = broker.subscriber("q")

    @subscriber
    async def take(body: str) -> None:
        calls(body)
        raise StopConsume

    async with started(broker):
        await broker.publish("hello", "q")
        await calls.times(1)
        await heard.until(lambda: not subscriber.running and bool(heard.outcomes))
        await broker.publish("again", "q")

        assert (await broker.stats())["q"].ready == 1
    assert calls.made == ["hello"]


async def test_one_handler_serves_two_brokers(url: str, calls: Calls) -> None:
    one = OutboxBroker(url, tables="one", logger=None)
    two = OutboxBroker(url, tables="two", logger=None)
    app = FastStream(one, two, logger=None)

    @one.subscriber("q")
    @two.subscriber("q2")
    async def take(body: str) -> None:
        calls(body)

    async with TestApp(app):
        await one.publish("hello", "q")
        await two.publish("hello", "q2")

        assert await calls.times(2) == ["hello", "hello"]


async def test_what_a_handler_returns_goes_out_through_another_broker(url: str, calls: Calls) -> None:
    one = OutboxBroker(url, tables="one", logger=None)
    two = OutboxBroker(url, tables="two", logger=None)

    @one.subscriber("q")
    @two.publisher("answers")
    async def pass_on(body: str) -> str:
        return body

    two.subscriber("answers")(calls.handler)

    async with TestApp(FastStream(one, two, logger=None)):
        await one.publish("hello", "q")

        assert await calls.times(1) == ["hello"]


@on_every_store
async def test_two_brokers_on_one_database_share_its_queues(make: Make, calls: Calls) -> None:
    one, two = make(), make()

    @one.subscriber("q")
    @two.publisher("answers")
    async def pass_on(body: str) -> str:
        return body

    one.subscriber("answers")(calls.handler)

    async with TestApp(FastStream(one, two, logger=None)):
        await one.publish("hello", "q")

        assert await calls.times(1) == ["hello"]
