"""Call assertions on what only our messages have, for handlers and publishers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from faststream.exceptions import SetupError
from faststream.redis import RedisBroker, TestRedisBroker
from pydantic import BaseModel

from nightmail import ConstantRetry, OutboxBroker, OutboxResponse, OutboxRouter
from nightmail.annotations import OutboxMessage
from nightmail.testing import TestOutboxBroker

START = datetime(2030, 1, 1, 9, 0, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
NOWHERE = "postgresql://user:secret@nowhere.invalid/none"
ASSERTIONS = ["assert_called_once_with", "assert_called_with", "assert_any_call"]


class Order(BaseModel):
    """A typed payload."""

    id: int


@pytest.fixture
def broker() -> OutboxBroker:
    """A broker whose database does not exist."""
    return OutboxBroker(NOWHERE)


@pytest.mark.parametrize("assertion", ASSERTIONS)
async def test_a_handler_is_asked_for_everything_that_publish_took(
    broker: OutboxBroker, assertion: str
) -> None:
    @broker.subscriber("q")
    async def handle(order: Order) -> None: ...

    options: dict[str, Any] = {
        "timer_id": "order-7",
        "activate_in": 30 * DAY,
        "expires_in": 31 * DAY,
        "ordering_key": "shop",
        "priority": 3,
        "headers": {"who": "me"},
        "correlation_id": "c",
        "reply_to": "answers",
    }
    tb = TestOutboxBroker(broker, start=START)
    async with tb as br:
        await br.publish(Order(id=7), "q", **options)
        await tb.advance(30 * DAY)

        await getattr(handle, assertion)(Order(id=7), queue="q", **options)
        await getattr(handle, assertion)(activate_at=START + 30 * DAY)


@pytest.mark.parametrize("assertion", ASSERTIONS)
@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({"timer_id": "eight"}, "timer_id: expected 'eight', got 'seven'"),
        ({"timer_id": None}, "timer_id: expected None, got 'seven'"),
        ({"queue": "r"}, "queue: expected 'r', got 'q'"),
        ({"ordering_key": "k"}, "ordering_key: expected 'k', got None"),
        ({"priority": 9}, "priority: expected 9, got 0"),
        ({"expires_in": DAY}, "expires_in: expected datetime.timedelta(days=1), got None"),
        (
            {"activate_in": 61},
            "activate_in: expected datetime.timedelta(seconds=61), got datetime.timedelta(seconds=60)",
        ),
        (
            {"activate_in": None},
            "activate_in: expected datetime.timedelta(0), got datetime.timedelta(seconds=60)",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_what_is_different_is_told(
    broker: OutboxBroker, assertion: str, expected: dict[str, Any], said: str
) -> None:
    publisher = broker.publisher("q")

    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish("tea", "q", timer_id="seven", activate_in=MINUTE)
        await tb.advance(MINUTE)
        for endpoint in (handle, publisher):
            with pytest.raises(AssertionError) as raised:
                await getattr(endpoint, assertion)("tea", **expected)
            assert said in str(raised.value)


async def test_a_publisher_knows_the_delay_before_it_has_passed(broker: OutboxBroker) -> None:
    reminders = broker.publisher("reminders", priority=2)

    @reminders
    @broker.subscriber("orders")
    async def order(number: int) -> OutboxResponse:
        return OutboxResponse(number, activate_in=30 * DAY, timer_id=f"order-{number}")

    async with TestOutboxBroker(broker) as br:
        await br.publish(7, "orders")

        await order.assert_called_once_with(7, timer_id=None, activate_in=0)
        await reminders.assert_called_once_with(
            7, queue="reminders", timer_id="order-7", activate_in=30 * DAY, priority=2
        )


async def test_a_delay_may_be_spelled_as_publish_takes_it(broker: OutboxBroker) -> None:
    publisher = broker.publisher("q")

    async with TestOutboxBroker(broker, start=START) as br:
        await br.publish("at once", "q", activate_in=-5)
        await publisher.assert_called_with(activate_in=0)
        await publisher.assert_called_with(activate_in=None)
        await publisher.assert_called_with(activate_in=timedelta(0))
        await br.publish("later", "q", activate_in=1.5, expires_in=60)
        await publisher.assert_called_with(activate_in=1.5, expires_in=MINUTE)
        await br.publish("at its time", "q", activate_at=START + DAY)
        await publisher.assert_called_with(activate_in=DAY, activate_at=START + DAY)


async def test_any_of_several_calls_will_do(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish("tea", "q", timer_id="first")
        await br.publish("tea", "q", timer_id="second")

        await handle.assert_any_call("tea", timer_id="first")
        await handle.assert_called_with("tea", timer_id="second")
        with pytest.raises(AssertionError):
            await handle.assert_called_once_with("tea", timer_id="second")
        with pytest.raises(AssertionError, match="first"):
            await handle.assert_any_call("tea", timer_id="third")


async def test_a_matcher_will_do(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish("tea", "q", timer_id="t")
        await handle.assert_called_once_with(ANY, timer_id=ANY, activate_in=ANY, queue=ANY)


async def test_the_queue_is_that_with_its_routers_prefix(broker: OutboxBroker) -> None:
    router = OutboxRouter(prefix="shop.")
    publisher = router.publisher("q")

    @router.subscriber("q")
    async def handle(body: str) -> None: ...

    broker.include_router(router)
    async with TestOutboxBroker(broker):
        await publisher.publish("tea")
        await handle.assert_called_once_with("tea", queue="shop.q")
        await publisher.assert_called_once_with("tea", queue="shop.q")


async def test_a_retry_is_due_later_and_its_name_is_the_same(broker: OutboxBroker) -> None:
    @broker.subscriber("q", retry=ConstantRetry(delay=MINUTE, jitter=0))
    async def handle(body: str, msg: OutboxMessage) -> None:
        if msg.attempt == 1:
            raise ConnectionError

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb as br:
        await br.publish("tea", "q", timer_id="t", activate_in=DAY)
        await tb.advance(2 * DAY)
        await handle.assert_any_call("tea", timer_id="t", activate_in=DAY)
        await handle.assert_called_with("tea", timer_id="t", activate_in=DAY + MINUTE)


async def test_a_misspelled_field_is_refused_with_a_hint(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    wrong: Any = {"timerid": "t"}
    async with TestOutboxBroker(broker) as br:
        await br.publish("tea", "q")
        for assertion in ASSERTIONS:
            with pytest.raises(TypeError, match=rf"{assertion}\(\).*did you mean 'timer_id'"):
                await getattr(handle, assertion)("tea", **wrong)


async def test_a_batch_is_asked_for_its_bodies_only(broker: OutboxBroker) -> None:
    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str]) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish_batch("tea", "cake", queue="q")
        await handle.assert_called_once_with(["tea", "cake"])
        with pytest.raises(SetupError, match="batch"):
            await handle.assert_called_once_with(["tea", "cake"], queue="q")


async def test_a_message_of_another_broker_has_no_timer(broker: OutboxBroker) -> None:
    redis = RedisBroker("redis://nowhere.invalid")
    later = broker.publisher("q")

    @redis.subscriber("channel")
    @later
    async def store(body: str) -> OutboxResponse:
        return OutboxResponse(body, activate_in=DAY)

    async with TestRedisBroker(redis, connect_only=False) as redis_br, TestOutboxBroker(broker):
        await redis_br.publish("tea", "channel")
        await later.assert_called_once_with("tea", activate_in=DAY)
        assertions: Any = store
        await assertions.assert_called_once_with("tea")
        with pytest.raises(SetupError, match="timer_id is for messages of an OutboxBroker"):
            await assertions.assert_called_once_with("tea", timer_id="t")


async def test_nothing_is_asserted_outside_of_a_test(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    with pytest.raises(SetupError, match="not under a test broker"):
        await handle.assert_called_once_with("tea", timer_id="t")


async def test_the_real_store_answers_too(tmp_path: Path) -> None:
    broker = OutboxBroker(f"sqlite:///{tmp_path / 'messages.db'}", logger=None)
    publisher = broker.publisher("q")

    @broker.subscriber("q")
    async def handle(body: str) -> None: ...

    async with TestOutboxBroker(broker, with_real=True):
        await publisher.publish("tea", timer_id="t", activate_in=0.25, priority=4)
        await publisher.assert_called_once_with("tea", timer_id="t", activate_in=0.25, priority=4)
        await handle.wait_call(timeout=10)
        await handle.assert_called_once_with("tea", timer_id="t", activate_in=0.25, priority=4, queue="q")
