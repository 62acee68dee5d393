"""The FastAPI example: orders and messages commit together, handlers have FastAPI's dependencies, one life for all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from faststream_fastapi import FastStreamAPI

from examples.fastapi_app import confirmations
from examples.fastapi_app.app import create_app
from nightmail import ConstantRetry, OutboxBroker, TestOutboxBroker
from tests.broker.support import PATIENCE
from tests.faststream.support import Calls
from tests.faststream.web import serving


class Letters(confirmations.Mailer):
    """Keeps what it should send."""

    def __init__(self, sent: Calls, *, failures: int = 0) -> None:
        self._sent = sent
        self._failures = failures

    async def send(self, text: str, *, key: str) -> None:
        if self._failures:
            self._failures -= 1
            raise ConnectionError("the mail server is away")
        self._sent(text)


@pytest.fixture
def app(tmp_path: Path) -> FastStreamAPI:
    return create_app(tmp_path / "shop.db")


@pytest.fixture
def broker(app: FastStreamAPI) -> OutboxBroker:
    found: OutboxBroker = app._application.state.broker
    return found


@pytest.fixture
def sent(app: FastStreamAPI) -> Calls:
    """What was mailed."""
    calls = Calls()
    app._application.dependency_overrides[confirmations.the_mailer] = lambda: Letters(calls)
    return calls


async def confirmed(client: httpx.AsyncClient, order: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while not (await client.get(f"/orders/{order}")).json()["confirmed"]:  # noqa: ASYNC110 - as a client asks
            await asyncio.sleep(0.01)


async def test_an_order_is_stored_confirmed_and_its_message_gone(
    app: FastStreamAPI, broker: OutboxBroker, sent: Calls
) -> None:
    async with serving(app) as client:
        placed = await client.post("/orders", json={"item": "kettle"})
        await confirmed(client, 1)

        assert (placed.status_code, placed.json()) == (201, {"id": 1, "confirmed": False, "paid": False})
        assert sent.made == ["thank you for the kettle"]
        assert list(await broker.stats()) == ["reminders"]


async def test_a_declined_order_leaves_neither_row_nor_message(
    app: FastStreamAPI, broker: OutboxBroker, sent: Calls
) -> None:
    async with serving(app) as client:
        declined = await client.post("/orders", json={"item": "kettle", "card_is_good": False})

        assert declined.status_code == 402
        assert (await client.get("/orders/1")).status_code == 404
        assert await broker.stats() == {}
    assert sent.made == []


async def test_paying_cancels_the_reminder(app: FastStreamAPI, broker: OutboxBroker, sent: Calls) -> None:
    async with serving(app) as client:
        await client.post("/orders", json={"item": "kettle"})
        assert await broker.has_pending("reminders", "order-1")

        paid = await client.post("/orders/1/payment")

        assert paid.json()["paid"] is True
        assert not await broker.has_pending("reminders", "order-1")


async def test_a_handler_that_fails_marks_nothing_and_is_tried_again(app: FastStreamAPI) -> None:
    sent = Calls()
    mailer = Letters(sent, failures=1)
    app._application.dependency_overrides[confirmations.the_mailer] = lambda: mailer
    broker: Any = app._application.state.broker
    broker.config.broker_config.worker_options["retry"] = ConstantRetry(delay=0, jitter=0)

    async with serving(app) as client:
        await client.post("/orders", json={"item": "kettle"})
        await confirmed(client, 1)

    assert sent.made == ["thank you for the kettle"]


async def test_it_starts_and_stops_as_one(app: FastStreamAPI, broker: OutboxBroker, sent: Calls) -> None:
    async with serving(app) as client:
        assert (await client.get("/health")).status_code == 204
        assert all(subscriber.running for subscriber in broker.subscribers)

    assert not any(subscriber.running for subscriber in broker.subscribers)


async def test_a_broker_that_cannot_start_stops_the_application(
    app: FastStreamAPI, broker: OutboxBroker
) -> None:
    broker._create_tables = False  # So the tables are missing.

    with pytest.raises(AssertionError, match=r"startup\.failed"):
        async with serving(app):
            pass


async def test_the_documents_have_routes_and_queues(app: FastStreamAPI, sent: Calls) -> None:
    async with serving(app) as client:
        assert "/orders" in (await client.get("/openapi.json")).json()["paths"]
        assert "confirmations" in (await client.get("/asyncapi")).text


async def test_time_can_be_moved_in_tests_of_it(
    app: FastStreamAPI, broker: OutboxBroker, sent: Calls
) -> None:
    tb = TestOutboxBroker(broker)
    async with tb, serving(app) as client:
        await client.post("/orders", json={"item": "kettle"})
        await tb.advance(3 * 24 * 3600)

    assert sent.made == ["thank you for the kettle", "the kettle waits to be paid"]
