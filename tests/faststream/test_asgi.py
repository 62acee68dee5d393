"""`AsgiFastStream`: health, the AsyncAPI page and its try-it-out."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from faststream.asgi import AsgiFastStream, make_ping_asgi
from faststream.specification import AsyncAPI

from nightmail import OutboxBroker
from nightmail.errors import StoreUnavailable
from tests.broker.support import PATIENCE, Make
from tests.faststream.support import Calls
from tests.faststream.web import serving


def shop(broker: OutboxBroker) -> AsgiFastStream:
    return AsgiFastStream(
        broker,
        asgi_routes=[("/health", make_ping_asgi(broker, timeout=5.0))],
        specification=AsyncAPI(title="Shop"),
        asyncapi_path="/docs",
        logger=None,
    )


async def healthy(client: httpx.AsyncClient) -> None:
    """Wait for it: FastStream says that it has started before its brokers have."""
    async with asyncio.timeout(PATIENCE):
        while (await client.get("/health")).status_code != 204:  # noqa: ASYNC110 - as a load balancer asks
            await asyncio.sleep(0.01)


async def test_messages_are_handled_while_it_serves(make: Make, calls: Calls) -> None:
    broker = make()
    broker.subscriber("orders")(calls.handler)

    async with serving(shop(broker)) as client:
        await healthy(client)
        await broker.publish("hello", "orders")

        assert await calls.times(1) == ["hello"]
    assert not any(subscriber.running for subscriber in broker.subscribers)


async def test_health_tells_when_the_store_does_not_answer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(self: Any) -> None:
        raise StoreUnavailable

    broker = make()

    async with serving(shop(broker)) as client:
        await healthy(client)
        with monkeypatch.context() as patched:
            patched.setattr(type(broker.store), "ping", unavailable)

            assert (await client.get("/health")).status_code == 500
        assert (await client.get("/health")).status_code == 204


async def test_the_page_shows_the_queues(make: Make) -> None:
    broker = make()

    @broker.subscriber("orders")
    async def take(order: int) -> None: ...

    async with serving(shop(broker)) as client:
        await healthy(client)
        page = await client.get("/docs")

    assert page.status_code == 200
    assert "orders" in page.text


def trying(channel: str, message: Any, *, for_real: bool) -> dict[str, Any]:
    return {
        "channelName": channel,
        "message": {"operation_id": "x", "operation_type": "x", "message": message},
        "options": {"sendToRealBroker": for_real},
    }


async def test_a_message_tried_out_for_real_is_handled(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("orders")
    async def take(order: dict[str, int]) -> None:
        calls(order)

    async with serving(shop(broker)) as client:
        await healthy(client)
        answer = await client.post("/docs/try", json=trying("orders:Take", {"id": 7}, for_real=True))

        assert (answer.status_code, answer.json()) == (200, "ok")
        assert await calls.times(1) == [{"id": 7}]


async def test_a_message_merely_tried_out_is_answered_and_never_stored(make: Make, calls: Calls) -> None:
    broker = make()

    @broker.subscriber("orders")
    async def take(order: dict[str, int]) -> str:
        calls(order)
        return f"took {order['id']}"

    async with serving(shop(broker)) as client:
        await healthy(client)
        answer = await client.post("/docs/try", json=trying("orders:Take", {"id": 7}, for_real=False))

        assert (answer.status_code, answer.json()) == (200, "took 7")
        assert calls.made == [{"id": 7}]
        assert await broker.stats() == {}
        # And it goes on as before.
        await broker.publish({"id": 8}, "orders")
        assert await calls.times(2) == [{"id": 7}, {"id": 8}]


async def test_trying_out_a_queue_that_has_no_subscriber_says_so(make: Make) -> None:
    async with serving(shop(make())) as client:
        await healthy(client)
        answer = await client.post("/docs/try", json=trying("unsubscribed:X", {}, for_real=False))

    assert answer.status_code == 404
