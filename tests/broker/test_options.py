"""Options: declared once, checked at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from faststream import AckPolicy, FastStream
from faststream.exceptions import FeatureNotSupportedException, SetupError
from faststream.specification import AsyncAPI

from nightmail import OutboxBroker

WRONG = [
    ({"max_workers": 0}, ValueError, "max_workers"),
    ({"max_workers": True}, TypeError, "whole number"),
    ({"max_deliveries": 0}, ValueError, "max_deliveries"),
    ({"lease_ttl_seconds": 0}, ValueError, "lease_ttl_seconds"),
    ({"lease_ttl_seconds": 0.001}, ValueError, "renewed"),
    ({"handler_timeout": -1}, ValueError, "handler_timeout"),
    ({"give_up_after": timedelta(0)}, ValueError, "give_up_after"),
    ({"retry": "often"}, TypeError, "policy"),
    ({"max_wokers": 5}, TypeError, "did you mean 'max_workers'"),
    ({"ack_policy": AckPolicy.ACK_FIRST}, SetupError, "ACK_FIRST"),
]


@pytest.mark.parametrize(("options", "error", "says"), WRONG)
def test_a_wrong_option_is_refused_when_it_is_given(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        OutboxBroker("memory://", **options)
    with pytest.raises(error, match=says):
        OutboxBroker("memory://").subscriber("q", **options)


@pytest.mark.parametrize(
    ("queues", "error", "says"),
    [
        ((), ValueError, "at least one queue"),
        ((["orders", "returns"],), TypeError, 'one by one: subscriber\\("orders", "returns"\\)'),
        (("a", "a"), ValueError, "twice"),
        (("",), ValueError, "empty"),
        ((5,), TypeError, "must be a str"),
    ],
)
def test_a_subscriber_needs_proper_queues(queues: tuple[Any, ...], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        OutboxBroker("memory://").subscriber(*queues)


async def test_options_of_the_broker_are_the_defaults_of_its_subscribers() -> None:
    broker = OutboxBroker("memory://", max_workers=3, lease_ttl_seconds=30, graceful_timeout=2, logger=None)
    usual = broker.subscriber("a")
    own = broker.subscriber("b", max_workers=7)

    @usual
    async def first(body: str) -> None: ...

    @own
    async def second(body: str) -> None: ...

    await broker.start()
    await broker.stop()

    assert (usual.settings.max_workers, usual.settings.lease) == (3, timedelta(seconds=30))
    assert (own.settings.max_workers, own.settings.lease) == (7, timedelta(seconds=30))
    assert own.settings.graceful_timeout == timedelta(seconds=2)


async def test_what_is_not_offered_says_so() -> None:
    broker = OutboxBroker("memory://")

    with pytest.raises(FeatureNotSupportedException, match="reply_to"):
        await broker.request("x", "q")
    with pytest.raises(FeatureNotSupportedException, match="reply_to"):
        await broker.publisher("q").request("x")


def test_the_asyncapi_document_has_the_queues_and_no_password() -> None:
    broker = OutboxBroker("postgresql://shop:hunter2@db.example/shop?sslmode=require")

    @broker.publisher("receipts", description="What was bought")
    @broker.subscriber("orders", "refunds", description="What to do")
    async def take(order: int) -> str:
        return "done"

    document = AsyncAPI(broker, title="Shop").to_specification().to_json()

    assert "hunter2" not in document
    assert "db.example" in document
    for queue in ("orders", "refunds", "receipts"):
        assert queue in document


async def test_it_runs_in_a_faststream_application() -> None:
    broker = OutboxBroker("memory://", logger=None)
    app = FastStream(broker, logger=None)
    got = []

    @broker.subscriber("q")
    async def take(body: str) -> None:
        got.append(body)
        app.exit()

    @app.after_startup
    async def send() -> None:
        await broker.publish("x", "q")

    await app.run()

    assert got == ["x"]
