"""What the options that FastStream's own brokers have do here."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from fast_depends import Provider
from faststream import Context, ContextRepo, Depends, FastStream, Header, TestApp
from faststream.specification import AsyncAPI
from faststream.specification.schema import Tag

from nightmail import OutboxBroker
from nightmail.annotations import OutboxMessage
from tests.broker.support import Make, started
from tests.faststream.support import Calls


async def test_ids_come_from_the_generator(make: Make, calls: Calls) -> None:
    numbers = iter(range(1, 9))
    broker = make(id_generator=lambda: f"id-{next(numbers)}")

    @broker.subscriber("q")
    async def take(msg: OutboxMessage) -> None:
        calls(msg.correlation_id)

    async with started(broker):
        await broker.publish("", "q")
        await calls.times(1)
        await broker.publisher("q").publish("")
        await calls.times(2)
        await broker.publish_batch("", queue="q")

        assert await calls.times(3) == ["id-1", "id-2", "id-3"]


async def test_dependencies_can_be_overridden_in_a_provider(make: Make, calls: Calls) -> None:
    def real() -> str:
        raise AssertionError

    provider = Provider()
    provider.override(real, lambda: "fake")
    broker = make(provider=provider)

    @broker.subscriber("q")
    async def take(body: str, value: str = Depends(real)) -> None:
        calls(value)

    async with started(broker):
        await broker.publish("", "q")

        assert await calls.times(1) == ["fake"]


async def test_handlers_find_what_was_put_into_the_context(make: Make, calls: Calls) -> None:
    broker = make(context=ContextRepo({"shop": "Bath"}))

    @broker.subscriber("q")
    async def take(body: str, shop: str = Context()) -> None:
        calls(shop)

    async with started(broker):
        await broker.publish("", "q")

        assert await calls.times(1) == ["Bath"]


async def test_the_contexts_of_the_application_and_of_each_broker_add_up(make: Make, calls: Calls) -> None:
    bath, york = make(context=ContextRepo({"shop": "Bath"})), make(context=ContextRepo({"shop": "York"}))

    @bath.subscriber("bath")
    async def take_in_bath(body: str, shop: str = Context(), company: str = Context()) -> None:
        calls(shop, company)

    @york.subscriber("york")
    async def take_in_york(body: str, shop: str = Context(), company: str = Context()) -> None:
        calls(shop, company)

    async with TestApp(FastStream(bath, york, context=ContextRepo({"company": "Tea"}))):
        await bath.publish("", "bath")
        await york.publish("", "york")

        assert sorted(await calls.times(2)) == [("Bath", "Tea"), ("York", "Tea")]


async def test_handlers_find_headers_and_parts_of_the_message(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("q")
    async def take(
        body: str,
        shop: str = Header(),
        town: str = Header("where", default="Bath"),
        correlation: str = Context("message.correlation_id"),
    ) -> None:
        calls(shop, town, correlation)

    async with started(broker):
        await broker.publish("", "q", headers={"shop": "corner"}, correlation_id="7")

        assert await calls.times(1) == [("corner", "Bath", "7")]


async def test_the_access_log_names_the_queue_and_the_message(make: Make, calls: Calls) -> None:
    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            calls(record.levelno, record.getMessage(), record.__dict__.get("queue"))

    logger = logging.getLogger("tests.faststream.access")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.handlers = [Kept()]
    broker = make(logger=logger, log_level=logging.DEBUG)

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with started(broker):
        await broker.publish("secret", "q")
        await calls.times(3)

    assert calls.made[:3] == [
        (logging.DEBUG, "`Take` waiting for messages", "q"),
        (logging.DEBUG, "Received", "q"),
        (logging.DEBUG, "Processed", "q"),
    ]


@pytest.mark.parametrize("version", ["2.6.0", "3.0.0"])
def test_the_document_says_what_it_was_told(version: str) -> None:
    broker = OutboxBroker(
        "postgresql://shop:hunter2@db.internal/shop",
        specification_url="postgresql://db.example/shop",
        protocol="postgresql",
        protocol_version="17",
        description="Where orders wait",
        tags=[Tag(name="orders")],
    )

    @broker.publisher("receipts", title="Receipts", description="What was bought", schema=int)
    @broker.subscriber("orders", title="Orders", description="What to do")
    async def take(order: int) -> str:
        return "done"

    document: dict[str, Any] = json.loads(
        AsyncAPI(broker, schema_version=version).to_specification().to_json()
    )

    (server,) = document["servers"].values()
    assert (server["protocol"], server["protocolVersion"]) == ("postgresql", "17")
    assert server["description"] == "Where orders wait"
    assert [tag["name"] for tag in server["tags"]] == ["orders"]
    channels = document["channels"]
    assert set(channels) == {"Orders", "Receipts"}
    assert channels["Orders"]["description"] == "What to do"
    assert channels["Receipts"]["description"] == "What was bought"
    assert "db.internal" not in json.dumps(document)
    assert "hunter2" not in json.dumps(document)


def test_a_channel_has_the_name_of_its_queue_unless_it_has_a_title() -> None:
    broker = OutboxBroker("memory://")

    @broker.publisher("receipts")
    @broker.subscriber("orders")
    async def take(order: int) -> str:
        """Takes an order."""
        return "done"

    document = json.loads(AsyncAPI(broker).to_specification().to_json())

    assert [channel["address"] for channel in document["channels"].values()] == ["orders", "receipts"]
    assert document["channels"]["orders:Take"]["description"] == "Takes an order."


def test_every_queue_of_a_subscriber_is_a_channel() -> None:
    broker = OutboxBroker("memory://")

    @broker.subscriber("orders", "refunds")
    async def take(order: int) -> None: ...

    document = json.loads(AsyncAPI(broker).to_specification().to_json())

    assert sorted(channel["address"] for channel in document["channels"].values()) == ["orders", "refunds"]
