"""FastStream's call assertions, on handlers and publishers: its scenarios of the test client about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from faststream.exceptions import SetupError
from pydantic import BaseModel

from nightmail import OutboxBroker, TestOutboxBroker


class Guest(BaseModel):
    name: str
    nights: int


class Named:
    """Equals every body that has this name: no serializer knows what to do with it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and other["name"] == self._name

    __hash__ = None  # type: ignore[assignment]


ADA = Guest(name="Ada", nights=2)
BEA = Guest(name="Bea", nights=3)
EVE = {"name": "Eve"}


@pytest.fixture
def broker() -> OutboxBroker:
    return OutboxBroker("memory://", logger=None)


# ── handlers ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_handlers_call_is_told_by_body_headers_and_context(broker: OutboxBroker) -> None:
    @broker.subscriber("arrivals")
    async def welcome(guest: Guest) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish(ADA, "arrivals", headers={"room": "12"}, correlation_id="stay-1", timer_id="ada")

        await welcome.assert_called_once_with(
            {"name": "Ada", "nights": 2},
            headers={"room": "12"},
            correlation_id="stay-1",
            content_type="application/json",
            context={"broker": broker, "message.timer_id": "ada", "message.attempt": 1},
        )
        await welcome.assert_called_once_with(ADA)
        await welcome.assert_called_once_with(Named("Ada"))
        await welcome.assert_called_once_with()


async def test_a_failed_assertion_names_everything_that_differs(broker: OutboxBroker) -> None:
    @broker.subscriber("arrivals")
    async def welcome(guest: Guest) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish(ADA, "arrivals", headers={"room": "12"}, timer_id="ada")

        with pytest.raises(AssertionError) as raised:
            await welcome.assert_called_once_with(
                EVE, headers={"room": "13"}, context={"message.timer_id": "bea"}
            )
        told = str(raised.value)
        assert "body: expected {'name': 'Eve'}, got {'name': 'Ada', 'nights': 2}" in told
        assert "headers: expected {'room': '13'}" in told
        assert "context['message.timer_id']: expected 'bea', got 'ada'" in told


async def test_the_last_call_of_a_handler_is_the_one_that_is_asked_for(broker: OutboxBroker) -> None:
    @broker.subscriber("arrivals")
    async def welcome(guest: Guest) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish(ADA, "arrivals", headers={"room": "12"})
        await br.publish(BEA, "arrivals", headers={"room": "14"})

        await welcome.assert_called_with(BEA, headers={"room": "14"})
        with pytest.raises(AssertionError, match=r"(?s)body:.*headers:"):
            await welcome.assert_called_with(ADA, headers={"room": "12"})
        with pytest.raises(AssertionError, match="Called 2 times"):
            await welcome.assert_called_once_with(BEA)


async def test_the_last_call_is_that_which_was_due_last(broker: OutboxBroker) -> None:
    @broker.subscriber("arrivals")
    async def welcome(guest: Guest) -> None: ...

    noon = datetime(2030, 5, 1, 12, tzinfo=UTC)
    tb = TestOutboxBroker(broker, start=noon)
    async with tb as br:
        await br.publish(ADA, "arrivals", activate_in=timedelta(days=2))
        await br.publish(BEA, "arrivals", activate_in=timedelta(days=1))
        await tb.advance(timedelta(days=2))

        await welcome.assert_called_with(ADA, context={"message.due_at": noon + timedelta(days=2)})


async def test_any_call_of_a_handler_may_be_the_one(broker: OutboxBroker) -> None:
    @broker.subscriber("arrivals")
    async def welcome(guest: Guest) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish(ADA, "arrivals", headers={"room": "12"})
        await br.publish(BEA, "arrivals", headers={"room": "14"})

        await welcome.assert_any_call(ADA, headers={"room": "12"})
        await welcome.assert_any_call(BEA, headers={"room": "14"})
        # Each of them fits half of this, and half is not enough.
        with pytest.raises(AssertionError, match=r"(?s)call 1:.*headers:.*call 2:.*body:"):
            await welcome.assert_any_call(ADA, headers={"room": "14"})


async def test_of_what_was_never_called_no_assertion_holds(broker: OutboxBroker) -> None:
    publisher = broker.publisher("departures")

    @broker.subscriber("arrivals")
    async def welcome(guest: Guest) -> None: ...

    async with TestOutboxBroker(broker):
        for endpoint in (welcome, publisher):
            asked: Any
            for asked in (
                endpoint.assert_called_once_with,
                endpoint.assert_called_with,
                endpoint.assert_any_call,
            ):
                with pytest.raises(AssertionError, match="was not called"):
                    await asked(ADA)


# ── publishers ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_publishers_call_is_told_whether_or_not_anybody_subscribes(broker: OutboxBroker) -> None:
    heard, unheard = broker.publisher("heard"), broker.publisher("unheard")

    @broker.subscriber("arrivals")
    async def welcome(guest: Guest) -> None:
        for publisher in (heard, unheard):
            await publisher.publish(guest, headers={"room": "12"}, correlation_id="stay-1", timer_id="ada")

    @broker.subscriber("heard")
    async def hear(guest: Guest) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish(ADA, "arrivals")

        for publisher in (heard, unheard):
            await publisher.assert_called_once_with(
                {"name": "Ada", "nights": 2},
                headers={"room": "12"},
                correlation_id="stay-1",
                context={"message.timer_id": "ada"},
            )
            await publisher.assert_called_once_with(ADA)
            with pytest.raises(AssertionError, match=r"(?s)body:.*headers:"):
                await publisher.assert_called_once_with(EVE, headers={"room": "13"})


async def test_the_assertions_of_a_publisher_all_look_at_the_same_calls(broker: OutboxBroker) -> None:
    publisher = broker.publisher("departures")

    @broker.subscriber("arrivals")
    async def welcome(body: str) -> None:
        await publisher.publish(ADA, correlation_id="1")
        await publisher.publish(BEA, correlation_id="2")

    async with TestOutboxBroker(broker) as br:
        await br.publish("", "arrivals")

        await publisher.assert_called_with(BEA, correlation_id="2")
        await publisher.assert_any_call(ADA, correlation_id="1")
        with pytest.raises(AssertionError, match="Called 2 times"):
            await publisher.assert_called_once_with(BEA)
        assert publisher.mock.call_count == 2


# ── outside ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_there_are_no_mocks_and_no_assertions_outside_of_the_test_broker(broker: OutboxBroker) -> None:
    publisher = broker.publisher("departures")

    @broker.subscriber("arrivals")
    async def welcome(guest: Guest) -> None:
        await publisher.publish(guest)

    async def refused() -> None:
        for endpoint in (welcome, publisher):
            with pytest.raises(SetupError, match="is not under a test broker"):
                _ = endpoint.mock
            asked: Any
            for asked in (
                endpoint.assert_called_once_with,
                endpoint.assert_called_with,
                endpoint.assert_any_call,
            ):
                with pytest.raises(SetupError, match="is not under a test broker"):
                    await asked(ADA)

    await refused()
    async with TestOutboxBroker(broker) as br:
        welcome.mock.assert_not_called()
        publisher.mock.assert_not_called()
        await br.publish(ADA, "arrivals")
        await welcome.assert_called_once_with(ADA)
        await publisher.assert_called_once_with(ADA)
    await refused()
    # And what one test has called, the next does not see.
    async with TestOutboxBroker(broker):
        welcome.mock.assert_not_called()
        publisher.mock.assert_not_called()
