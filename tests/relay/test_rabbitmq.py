"""Messages go on to a real RabbitMQ: as they are, when it has taken them, and none is lost with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aio_pika.abc import DeliveryMode
from faststream import BaseMiddleware, FastStream
from faststream.rabbit import RabbitBroker

from nightmail import ConstantRetry
from nightmail.outcome import Dead, Done, Reason
from testkit.servers.rabbitmq import RabbitMQ
from tests.broker.support import soon, started
from tests.relay.support import (
    AT_ONCE,
    BYTES,
    SOON,
    Arrived,
    Patient,
    box,
    declare,
    done,
    emptied,
    ids_by_body,
)

pytest_plugins = ["testkit.broker_fixtures"]


@pytest.fixture
def heard() -> Patient:
    return Patient()


@pytest.fixture
async def rabbit(rabbitmq_url: str) -> AsyncIterator[RabbitBroker]:
    # It would wait five seconds before it connects again.
    broker = RabbitBroker(f"{rabbitmq_url}?reconnect_interval=0.2", logger=None)
    await broker.connect()
    yield broker
    await broker.stop()


@pytest.fixture
async def queue(rabbitmq_url: str, address: str) -> str:
    await declare(rabbitmq_url, address)
    return address


@asynccontextmanager
async def both(outbox: Any, rabbit: RabbitBroker) -> AsyncIterator[None]:
    await rabbit.start()
    async with started(outbox):
        yield


class LosesTheFirstAnswer(BaseMiddleware):
    """As if the connection broke between the publish and the confirmation."""

    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        answer = await call_next(cmd)
        if self.msg is not None and self.msg.delivery.attempt == 1:
            raise ConnectionError("the answer is lost")
        return answer


# By decorator


async def test_what_a_handler_returns_goes_on(
    rabbit: RabbitBroker, rabbitmq_url: str, queue: str, heard: Patient
) -> None:
    outbox = box(heard)

    @rabbit.publisher(queue, persist=True)
    @outbox.subscriber("orders")
    async def total(order: dict[str, int]) -> dict[str, int]:
        return {"total": order["price"] * order["count"]}

    async with both(outbox, rabbit):
        await outbox.publish(
            {"price": 7, "count": 3}, "orders", correlation_id="c-1", headers={"shop": "north"}
        )
        await heard.until(lambda: done(heard) == 1)

    (message,) = await emptied(rabbitmq_url, queue)
    assert message.body == b'{"total":21}'
    assert message.content_type == "application/json"
    assert message.correlation_id == "c-1"
    assert "shop" not in message.headers


async def test_headers_go_on_with_it_when_asked_for_and_its_own_count(
    rabbit: RabbitBroker, rabbitmq_url: str, queue: str, heard: Patient
) -> None:
    outbox = box(heard)

    @rabbit.publisher(queue, headers={"by": "publisher", "via": "publisher"})
    @outbox.subscriber("orders", propagate_headers=True)
    async def shout(text: str) -> dict[str, str]:
        return {"text": text.upper()}

    async with both(outbox, rabbit):
        headers = {"shop": "north", "number": 3, "by": "message"}
        await outbox.publish("tea", "orders", correlation_id="c-1", headers=headers)
        await heard.until(lambda: done(heard) == 1)

    (message,) = await emptied(rabbitmq_url, queue)
    assert message.headers == {"shop": "north", "number": 3, "by": "message", "via": "publisher"}
    # Of what it is now, not of what it was.
    assert message.content_type == "application/json"
    assert message.correlation_id == "c-1"


async def test_a_message_is_acknowledged_only_when_rabbitmq_has_it(
    rabbit: RabbitBroker, rabbitmq_server: RabbitMQ, rabbitmq_url: str, queue: str, heard: Patient
) -> None:
    outbox, returned = box(heard), asyncio.Event()

    @rabbit.publisher(queue)
    @outbox.subscriber("orders")
    async def go_on(order: str) -> str:
        returned.set()
        return order

    @outbox.subscriber("others")
    async def stay(other: str) -> None: ...

    async with both(outbox, rabbit):
        await asyncio.to_thread(rabbitmq_server.pause)
        try:
            sent = await outbox.publish("tea", "orders")
            await soon(returned)
            # Another message comes and goes: what there was to write about the first is written by then.
            other = await outbox.publish("bread", "others")
            await heard.until(lambda: heard.of(other) == [Done()])
            assert heard.of(sent) == []
            assert (await outbox.store.stats())["orders"].running == 1
        finally:
            await asyncio.to_thread(rabbitmq_server.resume)
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert [message.body for message in await emptied(rabbitmq_url, queue)] == [b"tea"]


async def test_what_rabbitmq_cannot_route_was_not_taken_and_is_tried_again(
    rabbit: RabbitBroker, rabbitmq_url: str, address: str, heard: Patient
) -> None:
    outbox = box(heard, retry=SOON)

    @rabbit.publisher(address)
    @outbox.subscriber("orders")
    async def go_on(order: str) -> str:
        return order

    async with both(outbox, rabbit):
        await outbox.publish("tea", "orders")
        await heard.until(lambda: "NotTaken" in heard.errors)
        await declare(rabbitmq_url, address)
        await heard.until(lambda: done(heard) == 1)

    assert [message.body for message in await emptied(rabbitmq_url, address)] == [b"tea"]


async def test_what_a_handler_returned_twice_has_the_same_id_both_times(
    rabbit: RabbitBroker, rabbitmq_url: str, queue: str, heard: Patient
) -> None:
    outbox = box(heard, retry=AT_ONCE, middlewares=[LosesTheFirstAnswer])

    @rabbit.publisher(queue)
    @outbox.subscriber("orders")
    async def go_on(order: str) -> str:
        return order

    async with both(outbox, rabbit):
        for number in (1, 2):
            await outbox.publish("tea", "orders", correlation_id="shared")
            await heard.until(lambda number=number: done(heard) == number)  # type: ignore[misc]

    ids = [str(message.message_id) for message in await emptied(rabbitmq_url, queue)]
    assert len(ids) == 4
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert ids[0].startswith("orders:1:")
    assert ids[2].startswith("orders:2:")
    assert all(given.endswith(f":{queue}") for given in ids)


# Without a handler


async def test_a_relayed_message_arrives_as_it_was_published(
    rabbit: RabbitBroker, rabbitmq_url: str, queue: str, heard: Patient
) -> None:
    outbox = box(heard)
    outbox.relay("orders", to=rabbit.publisher(queue))

    async with both(outbox, rabbit):
        sent = await outbox.publish(
            BYTES,
            "orders",
            headers={
                "content-type": "application/x-tea",
                "shop": "nord\xe9",
                "number": 3,
                "deep": {"a": [1, None]},
            },
            correlation_id="c-1",
            reply_to="answers",
            priority=5,
        )
        await heard.until(lambda: heard.of(sent) == [Done()])

    (message,) = await emptied(rabbitmq_url, queue)
    assert message.body == BYTES
    assert message.content_type == "application/x-tea"
    assert message.headers == {"shop": "nord\xe9", "number": 3, "deep": {"a": [1, None]}}
    assert message.correlation_id == "c-1"
    assert message.reply_to == "answers"
    assert message.priority == 5
    assert message.delivery_mode is DeliveryMode.PERSISTENT
    assert message.message_id is not None
    assert message.message_id.startswith(f"orders:{sent}:")


async def test_a_message_that_would_be_no_json_is_not_read_on_the_way(
    rabbit: RabbitBroker, rabbitmq_url: str, queue: str, heard: Patient
) -> None:
    outbox = box(heard)
    outbox.relay("orders", to=rabbit.publisher(queue))

    async with both(outbox, rabbit):
        await outbox.publish(b"{not json", "orders", headers={"content-type": "application/json"})
        await heard.until(lambda: done(heard) == 1)

    (message,) = await emptied(rabbitmq_url, queue)
    assert message.body == b"{not json"
    assert message.content_type == "application/json"


async def test_a_message_that_goes_twice_has_the_same_id_both_times(
    rabbit: RabbitBroker, rabbitmq_url: str, queue: str, heard: Patient
) -> None:
    outbox = box(heard, retry=AT_ONCE, middlewares=[LosesTheFirstAnswer])
    outbox.relay("orders", to=rabbit.publisher(queue), id_prefix="north-")

    async with both(outbox, rabbit):
        sent = await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 1)

    first, second = await emptied(rabbitmq_url, queue)
    assert first.body == second.body == b"tea"
    assert first.message_id == second.message_id
    assert str(first.message_id).startswith(f"north-orders:{sent}:")


async def test_what_cannot_be_relayed_at_all_becomes_a_dead_letter(
    rabbit: RabbitBroker, address: str, heard: Patient
) -> None:
    outbox = box(heard)
    relay = outbox.relay(
        "orders", to=rabbit.publisher(address), retry=ConstantRetry(delay=0, jitter=0, max_attempts=3)
    )

    async with both(outbox, rabbit):
        sent = await outbox.publish("tea", "orders")
        await heard.until(lambda: len(heard.of(sent)) == 3)
        (letter,) = await outbox.dead_letters("orders")

    assert relay.queues == ("orders",)
    assert heard.errors == ["NotTaken"] * 3
    assert isinstance(heard.of(sent)[-1], Dead)
    assert (letter.reason, letter.body) == (Reason.RETRIES_EXHAUSTED, b"tea")


async def test_the_order_of_a_key_is_kept(
    rabbit: RabbitBroker, rabbitmq_url: str, queue: str, heard: Patient
) -> None:
    outbox = box(heard)
    outbox.relay("orders", to=rabbit.publisher(queue))

    async with both(outbox, rabbit):
        for number in range(30):
            await outbox.publish(str(number), "orders", ordering_key="one")
        await heard.until(lambda: done(heard) == 30)

    arrived = [int(message.body) for message in await emptied(rabbitmq_url, queue)]
    assert arrived == list(range(30))


async def test_an_application_of_both_fails_neither_at_its_start_nor_at_its_end(
    rabbitmq_url: str, queue: str, heard: Patient
) -> None:
    rabbit, outbox = RabbitBroker(rabbitmq_url, logger=None), box(heard)
    outbox.relay("orders", to=rabbit.publisher(queue))
    app = FastStream(outbox, rabbit, logger=None)
    app.on_startup(rabbit.connect)
    await outbox.connect()
    await outbox.publish("waiting", "orders")

    await app.start()
    await heard.until(lambda: done(heard) == 1)
    await app.stop()

    assert heard.errors == []
    assert [message.body for message in await emptied(rabbitmq_url, queue)] == [b"waiting"]


# When it dies


@pytest.mark.slow
async def test_nothing_is_lost_when_rabbitmq_is_killed_twice_under_load(
    rabbit: RabbitBroker, rabbitmq_server: RabbitMQ, rabbitmq_url: str, queue: str, heard: Patient
) -> None:
    count = 2000
    outbox = box(heard, retry=SOON, max_workers=50)
    outbox.relay("orders", to=rabbit.publisher(queue))

    async def kill() -> None:
        await asyncio.to_thread(rabbitmq_server.kill)
        await asyncio.to_thread(rabbitmq_server.start)

    async with both(outbox, rabbit):
        await outbox.publish_batch(*(f"order {number}" for number in range(count)), queue="orders")
        for enough in (count // 4, count // 2):
            await heard.until(lambda enough=enough: done(heard) >= enough)  # type: ignore[misc]
            assert done(heard) < count
            await kill()
        await heard.until(lambda: done(heard) == count)

    assert heard.errors  # Else nothing was on its way when it died.
    ids = ids_by_body(
        Arrived(message.body, message.message_id) for message in await emptied(rabbitmq_url, queue)
    )
    assert ids.keys() == {f"order {number}".encode() for number in range(count)}
    # What came twice can be told: one id for each message, and one message for each id.
    assert all(len(set(those)) == 1 for those in ids.values())
    assert len({those[0] for those in ids.values()}) == count
