"""Relaying to brokers of which there is no server here: FastStream's own stand-ins for them, which encode alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from faststream import confluent, kafka, rabbit
from faststream.message import StreamMessage
from faststream.params import Context

from nightmail.outcome import Done
from tests.broker.support import soon, started
from tests.relay.support import AT_ONCE, BYTES, Patient, box, done

Message = Annotated[StreamMessage[Any], Context("message")]


@pytest.fixture
def heard() -> Patient:
    return Patient()


class Taken:
    """What a subscriber of the other broker got."""

    def __init__(self) -> None:
        self.messages: list[StreamMessage[Any]] = []
        self.first = asyncio.Event()

    async def take(self, message: Message) -> None:
        self.messages.append(message)
        self.first.set()


KAFKAS = pytest.mark.parametrize(
    ("kafka_broker", "test_broker", "key_of"),
    [
        (kafka.KafkaBroker, kafka.TestKafkaBroker, lambda raw: raw.key),
        (confluent.KafkaBroker, confluent.TestKafkaBroker, lambda raw: raw.key()),
    ],
    ids=["kafka", "confluent"],
)


@KAFKAS
async def test_a_relayed_message_arrives_in_kafka_with_its_ordering_key(
    kafka_broker: Any, test_broker: Any, key_of: Callable[[Any], bytes], heard: Patient
) -> None:
    other, outbox, taken = kafka_broker(logger=None), box(heard), Taken()
    other.subscriber("orders-topic")(taken.take)
    outbox.relay("orders", to=other.publisher("orders-topic", key=b"by default"))

    async with test_broker(other), started(outbox):
        sent = await outbox.publish(
            BYTES,
            "orders",
            ordering_key="customer 7",
            headers={"content-type": "application/x-tea", "shop": "north", "number": 3},
            correlation_id="c-1",
        )
        await heard.until(lambda: heard.of(sent) == [Done()])
        await outbox.publish("no key", "orders")
        await heard.until(lambda: done(heard) == 2)

    first, second = taken.messages
    assert first.body == BYTES
    assert first.content_type == "application/x-tea"
    assert first.correlation_id == "c-1"
    assert (first.headers["shop"], first.headers["number"]) == ("north", "3")
    assert first.headers["nightmail-message-id"].startswith(f"orders:{sent}:")
    assert key_of(first.raw_message) == b"customer 7"
    assert key_of(second.raw_message) == b"by default"


@KAFKAS
async def test_what_a_handler_returns_goes_on_to_kafka_with_the_headers_of_its_message(
    kafka_broker: Any, test_broker: Any, key_of: Callable[[Any], bytes], heard: Patient
) -> None:
    other, outbox, taken = kafka_broker(logger=None), box(heard), Taken()
    other.subscriber("orders-topic")(taken.take)

    @other.publisher("orders-topic")
    @outbox.subscriber("orders", propagate_headers=True)
    async def shout(order: str) -> dict[str, str]:
        return {"order": order.upper()}

    async with test_broker(other), started(outbox):
        await outbox.publish("tea", "orders", headers={"shop": "north", "number": 3}, correlation_id="c-1")
        await heard.until(lambda: done(heard) == 1)

    (message,) = taken.messages
    assert message.body == b'{"order":"TEA"}'
    assert message.content_type == "application/json"
    assert message.correlation_id == "c-1"
    assert (message.headers["shop"], message.headers["number"]) == ("north", "3")


async def test_a_publish_that_fails_is_tried_again(heard: Patient) -> None:
    other, outbox = rabbit.RabbitBroker(logger=None), box(heard, retry=AT_ONCE)
    taken: list[str] = []

    @other.subscriber("orders-queue")
    async def take(order: str) -> None:
        if not heard.errors:
            raise ConnectionError("the other side is away")
        taken.append(order)

    @other.publisher("orders-queue")
    @outbox.subscriber("orders")
    async def go_on(order: str) -> str:
        return order

    # FastStream's stand-in lets what a subscriber raises out of the publish.
    async with rabbit.TestRabbitBroker(other), started(outbox):
        await outbox.publish("tea", "orders")
        await heard.until(lambda: done(heard) == 1)

    assert heard.errors == ["ConnectionError"]
    assert taken == ["tea"]


async def test_a_relay_uses_the_stand_in_of_rabbitmq_too(heard: Patient) -> None:
    other, outbox, taken = rabbit.RabbitBroker(logger=None), box(heard), Taken()
    other.subscriber("orders-queue")(taken.take)
    outbox.relay("orders", to=other.publisher("orders-queue"))

    async with rabbit.TestRabbitBroker(other), started(outbox):
        await outbox.publish({"tea": 1}, "orders", headers={"shop": "north"})
        await soon(taken.first)

    (message,) = taken.messages
    assert message.body == b'{"tea":1}'
    assert message.content_type == "application/json"
    assert message.headers == {"shop": "north"}


HARMLESS = {"shop": "north", "x-request-id": "7"}
COMMANDS = {
    "CC": ["other-queue"],
    "BCC": ["other-queue"],
    "x-delay": 1000,
    "x-death": [],
    "Nats-Rollup": "all",
    "nats-expected-stream": "orders",
}


@pytest.mark.parametrize("returned", [False, True])
async def test_headers_that_rabbitmq_would_obey_stay_behind(heard: Patient, returned: bool) -> None:
    other, outbox, taken = rabbit.RabbitBroker(logger=None), box(heard), Taken()
    other.subscriber("orders-queue")(taken.take)
    if returned:

        @other.publisher("orders-queue")
        @outbox.subscriber("orders", propagate_headers=True)
        async def handle(body: str) -> str:
            return body
    else:
        outbox.relay("orders", to=other.publisher("orders-queue"))

    async with rabbit.TestRabbitBroker(other), started(outbox):
        sent = await outbox.publish("tea", "orders", headers={**HARMLESS, **COMMANDS})
        await heard.until(lambda: heard.of(sent) == [Done()])

    (message,) = taken.messages
    assert {name: message.headers.get(name) for name in HARMLESS} == HARMLESS
    assert not COMMANDS.keys() & message.headers.keys()


async def test_a_handler_may_command_the_other_side_itself(heard: Patient) -> None:
    other, outbox, taken = rabbit.RabbitBroker(logger=None), box(heard), Taken()
    other.subscriber("orders-queue")(taken.take)

    @other.publisher("orders-queue")
    @outbox.subscriber("orders", propagate_headers=True)
    async def handle(body: str) -> rabbit.RabbitResponse:
        return rabbit.RabbitResponse(body, headers={"x-delay": 5})

    async with rabbit.TestRabbitBroker(other), started(outbox):
        sent = await outbox.publish("tea", "orders", headers=COMMANDS)
        await heard.until(lambda: heard.of(sent) == [Done()])

    (message,) = taken.messages
    assert message.headers["x-delay"] == 5
    assert "CC" not in message.headers


async def test_another_outbox_gets_every_header(heard: Patient) -> None:
    other, outbox = box(heard), box(heard)
    outbox.relay("orders", to=other.publisher("orders"))

    async with other, started(outbox):
        sent = await outbox.publish("tea", "orders", headers={**HARMLESS, **COMMANDS})
        await heard.until(lambda: heard.of(sent) == [Done()])
        (waiting,) = await other.pending("orders")

    assert {name: waiting.headers.get(name) for name in COMMANDS} == COMMANDS
