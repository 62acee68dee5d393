"""The test broker as FastStream knows test brokers: mocks, call assertions, applications, other brokers, dry runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from faststream import FastStream, TestApp
from faststream.asgi import AsgiFastStream
from faststream.asgi.factories.asyncapi.try_it_out import TryItOutProcessor
from faststream.exceptions import FeatureNotSupportedException, SetupError, SubscriberNotFound
from faststream.message import StreamMessage
from faststream.middlewares import BaseMiddleware
from faststream.redis import RedisBroker, TestRedisBroker
from pydantic import BaseModel

from nightmail import NoRetry, OutboxBroker, OutboxResponse, OutboxRouter
from nightmail.annotations import OutboxMessage
from nightmail.testing import TestOutboxBroker
from tests.broker.support import soon

START = datetime(2030, 1, 1, 9, 0, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
NOWHERE = "postgresql://user:secret@nowhere.invalid/none"


class Order(BaseModel):
    """A typed payload."""

    id: int


@pytest.fixture
def broker() -> OutboxBroker:
    """A broker whose database does not exist."""
    return OutboxBroker(NOWHERE)


def dry_run(queue: str, payload: Any) -> Any:
    """What the documentation's page sends."""
    return {"channelName": f"{queue}:Handle", "message": {"message": payload}, "options": {}}


# ── mocks and assertions ───────────────────────────────────────────────────────────────────────────────────


async def test_a_handlers_mock_records_its_calls(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(order: Order, msg: OutboxMessage) -> None:
        pass

    async with TestOutboxBroker(broker) as br:
        await br.publish(Order(id=7), "q", headers={"who": "me"}, timer_id="seven", correlation_id="c")
        handle.mock.assert_called_once_with({"id": 7})
        await handle.assert_called_once_with(
            Order(id=7), headers={"who": "me"}, correlation_id="c", context={"message.timer_id": "seven"}
        )
        with pytest.raises(AssertionError, match="timer_id"):
            await handle.assert_called_once_with(context={"message.timer_id": "eight"})

    with pytest.raises(SetupError):
        handle.mock.assert_called_once()


async def test_a_publishers_mock_records_what_was_published_when_it_was_published(
    broker: OutboxBroker,
) -> None:
    publisher = broker.publisher("later")

    @publisher
    @broker.subscriber("q")
    async def handle(body: str) -> Any:
        return OutboxResponse(f"{body} again", activate_in=DAY, timer_id="t")

    tb = TestOutboxBroker(broker, start=START)
    async with tb as br:
        await br.publish("tea", "q")
        publisher.mock.assert_called_once_with("tea again")
        await publisher.assert_called_once_with("tea again", context={"message.timer_id": "t"})
        assert [waiting.due_at for waiting in await tb.pending("later")] == [START + DAY]


async def test_a_publishers_mock_counts_a_message_once_though_its_handler_runs_twice(
    broker: OutboxBroker,
) -> None:
    publisher = broker.publisher("q")

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        if msg.attempt == 1:
            raise ConnectionError

    tb = TestOutboxBroker(broker, raise_errors=False)
    async with tb as br:
        await publisher.publish("tea")
        await br.publish("cake", "q")
        await tb.advance(MINUTE)
        assert handle.mock.call_count == 4
        assert [call.args for call in publisher.mock.call_args_list] == [("tea",), ("cake",)]


async def test_everything_published_is_on_record(broker: OutboxBroker) -> None:
    tb = TestOutboxBroker(broker, start=START)
    async with tb as br:
        await br.publish({"id": 7}, "q", activate_in=DAY, timer_id="t", headers={"who": "me"}, priority=3)
        await br.publish("skipped", "q", timer_id="t")
        await tb.advance(MINUTE)
        await br.publish_batch("a", "b", queue="r", ordering_key="k", expires_in=DAY)

    first, second, third = tb.published
    assert (first.id, first.queue, first.body, first.timer_id) == (1, "q", {"id": 7}, "t")
    assert (first.delay, first.due_at, first.priority) == (DAY, START + DAY, 3)
    assert first.headers["who"] == "me"
    assert (second.queue, second.body, second.ordering_key, second.delay) == ("r", "a", "k", timedelta(0))
    assert (third.body, third.published_at) == ("b", START + MINUTE)
    assert third.expires_at == START + MINUTE + DAY


async def test_the_record_is_decoded_as_the_broker_decodes() -> None:
    async def shouting(msg: StreamMessage[Any], decode: Callable[[Any], Awaitable[Any]]) -> Any:
        return (await decode(msg)).upper()

    broker = OutboxBroker(NOWHERE, decoder=shouting)
    publisher = broker.publisher("q")
    tb = TestOutboxBroker(broker)
    async with tb:
        await publisher.publish("tea")
        assert tb.published[0].body == "TEA"
        publisher.mock.assert_called_once_with("TEA")


async def test_publishers_of_routers_are_recorded(broker: OutboxBroker) -> None:
    router = OutboxRouter("shop.")
    publisher = router.publisher("orders")
    broker.include_router(router)
    async with TestOutboxBroker(broker):
        await publisher.publish("tea")
        publisher.mock.assert_called_once_with("tea")


async def test_middlewares_see_what_is_published_and_what_is_handled() -> None:
    seen: list[str] = []

    class Watch(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.append("consumed")
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            seen.append("published")
            return await call_next(cmd)

    broker = OutboxBroker(NOWHERE, middlewares=[Watch])

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        pass

    async with TestOutboxBroker(broker) as br:
        await br.publish("tea", "q")
    assert seen == ["published", "consumed"]


async def test_a_subscriber_made_in_the_middle_is_served_while_it_is_started(broker: OutboxBroker) -> None:
    got: list[str] = []
    tb = TestOutboxBroker(broker)
    async with tb as br:
        subscriber = br.subscriber("q", persistent=False)

        @subscriber
        async def handle(body: str) -> None:
            got.append(body)

        await br.publish("tea", "q", activate_in=DAY)
        async with subscriber:
            await tb.advance(DAY)
            assert got == ["tea"]
        await br.publish("cake", "q")
        assert got == ["tea"]


async def test_messages_are_taken_by_hand(broker: OutboxBroker) -> None:
    subscriber = broker.subscriber("q")
    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish("tea", "q", activate_in=DAY)
        await tb.advance(DAY)
        taken = await subscriber.get_one(timeout=1)
        assert taken is not None
        assert await taken.decode() == "tea"
        await taken.ack()
        assert await br.stats() == {}


# ── applications and other brokers ─────────────────────────────────────────────────────────────────────────


async def test_an_application_starts_and_stops_with_it(broker: OutboxBroker) -> None:
    app = FastStream(broker)

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        pass

    @app.after_startup
    async def greet() -> None:
        await broker.publish("hello", "q")

    async with TestOutboxBroker(broker) as br, TestApp(app):
        handle.mock.assert_called_once_with("hello")
        assert await br.ping(timeout=1)

    tb = TestOutboxBroker(broker)
    async with tb, TestApp(app):
        await tb.advance(DAY)
        handle.mock.assert_called_once_with("hello")


async def test_a_message_relayed_to_another_broker_arrives_there(broker: OutboxBroker) -> None:
    redis = RedisBroker("redis://nowhere.invalid")

    @redis.publisher("channel")
    @broker.subscriber("q")
    async def relay(body: str) -> str:
        return f"relayed {body}"

    @redis.subscriber("channel")
    async def arrive(body: str) -> None:
        pass

    tb = TestOutboxBroker(broker)
    async with TestRedisBroker(redis, connect_only=False), tb as br:
        await br.publish("tea", "q", activate_in=DAY)
        arrive.mock.assert_not_called()
        await tb.advance(DAY)
        arrive.mock.assert_called_once_with("relayed tea")


async def test_a_relay_without_a_handler_passes_on_when_the_message_is_due(broker: OutboxBroker) -> None:
    redis = RedisBroker("redis://nowhere.invalid")
    broker.relay("q", to=redis.publisher(stream="orders"))

    @redis.subscriber(stream="orders")
    async def arrive(body: dict[str, int]) -> None:
        pass

    tb = TestOutboxBroker(broker)
    async with TestRedisBroker(redis, connect_only=False), tb as br:
        await br.publish({"tea": 2}, "q", activate_in=DAY)
        arrive.mock.assert_not_called()
        await tb.advance(DAY)
        arrive.mock.assert_called_once_with({"tea": 2})
        assert await tb.pending() == []


async def test_a_message_of_another_broker_is_stored_for_later(broker: OutboxBroker) -> None:
    redis = RedisBroker("redis://nowhere.invalid")
    later = broker.publisher("q")

    @later
    @redis.subscriber("channel")
    async def store(body: str) -> Any:
        return OutboxResponse(body, activate_in=DAY)

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        pass

    tb = TestOutboxBroker(broker)
    async with TestRedisBroker(redis, connect_only=False) as redis_br, tb:
        await redis_br.publish("tea", "channel")
        later.mock.assert_called_once_with("tea")
        handle.mock.assert_not_called()
        await tb.advance(DAY)
        handle.mock.assert_called_once_with("tea")


async def test_two_test_brokers_that_publish_to_each_other_do_not_wait_for_each_other(
    broker: OutboxBroker,
) -> None:
    other, got = OutboxBroker("mysql://nowhere.invalid/none"), []

    @broker.subscriber("here")
    async def here(body: int) -> None:
        got.append(body)
        if body < 3:
            await other.publish(body + 1, "there")

    @other.subscriber("there")
    async def there(body: int) -> None:
        got.append(body)
        await broker.publish(body + 1, "here")

    async with TestOutboxBroker(broker), TestOutboxBroker(other), asyncio.timeout(10):
        await broker.publish(0, "here")
    assert got == [0, 1, 2, 3, 4]


# ── dry runs ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_documentation_can_be_served(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(order: Order) -> None:
        pass

    assert AsgiFastStream(broker, asyncapi_path="/docs").routes


async def test_a_request_returns_what_the_handler_answers(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(order: Order) -> dict[str, int]:
        return {"doubled": 2 * order.id}

    @broker.subscriber("sick", retry=NoRetry())
    async def sick(body: str) -> None:
        raise ConnectionError("sick")

    @broker.subscriber("quiet", batch=True)
    async def quiet(bodies: list[str]) -> None:
        pass

    br: Any
    async with TestOutboxBroker(broker) as br:
        answer = await br.request({"id": 4}, "q", timeout=5)
        assert await answer.decode() == {"doubled": 8}
        asked = await br.request({"id": 4}, "q", correlation_id="c-7")
        assert asked.correlation_id == "c-7"
        assert await (await br.request("tea", "quiet")).decode() == b""
        with pytest.raises(ConnectionError, match="sick"):
            await br.request("tea", "sick")
        with pytest.raises(SubscriberNotFound):
            await br.request("tea", "unsubscribed")

    with pytest.raises(FeatureNotSupportedException):
        await broker.request({"id": 4}, "q")


async def test_a_dry_run_answers(broker: OutboxBroker) -> None:
    @broker.subscriber("q")
    async def handle(order: Order) -> int:
        return order.id

    processor = TryItOutProcessor(broker)
    answer = await processor.process(dry_run("q", {"id": 7}))
    assert (answer.status_code, answer.body) == (200, b"7")
    assert (await processor.process(dry_run("unsubscribed", {"id": 7}))).status_code == 404
    assert (await processor.process(dry_run("q", {"id": "seven"}))).status_code == 500


async def test_a_dry_run_leaves_a_running_broker_alone(tmp_path: Path) -> None:
    broker = OutboxBroker(f"sqlite:///{tmp_path / 'messages.db'}", logger=None)
    publisher = broker.publisher("results")
    trying, tried, handled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @publisher
    @broker.subscriber("q")
    async def handle(body: str) -> str:
        if body == "dry":
            trying.set()
            await tried.wait()
            await broker.publish("from the dry run", "elsewhere", activate_in=DAY)
            await broker.cancel_timer("elsewhere", "kept")
        else:
            handled.set()
        return body

    store = broker.store
    async with broker:
        await broker.start()
        await broker.publish("kept", "elsewhere", activate_in=DAY, timer_id="kept")
        running = asyncio.create_task(TryItOutProcessor(broker).process(dry_run("q", "dry")))
        await soon(trying)

        await broker.publish("real", "q", timer_id="real")
        await soon(handled)
        with pytest.raises(FeatureNotSupportedException):
            await broker.request("real", "q")
        second = asyncio.create_task(TryItOutProcessor(broker).process(dry_run("q", "second")))
        assert (await second).body == b'"second"'
        tried.set()
        assert (await running).body == b'"dry"'

        assert broker.store is store
        assert broker.running
        assert all(subscriber.running for subscriber in broker.subscribers)
        assert await broker.ping()
        handled.clear()
        await broker.publish("still real", "q")
        await soon(handled)
        assert [waiting.timer_id for waiting in await broker.pending("elsewhere")] == ["kept"]

    async with broker:
        assert {waiting.body for waiting in await broker.pending("results")} == {b"real", b"still real"}


async def test_a_handler_of_a_running_broker_re_arms_its_timer_during_a_dry_run(tmp_path: Path) -> None:
    broker = OutboxBroker(f"sqlite:///{tmp_path / 'messages.db'}", logger=None)
    trying, tried, rearmed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    stored: list[int | None] = []

    @broker.subscriber("q")
    async def handle(body: str) -> None:
        if body == "dry":
            trying.set()
            await tried.wait()
        else:
            stored.append(await broker.publish(body, "q", timer_id="t", activate_in=DAY))
            rearmed.set()

    async with broker:
        await broker.start()
        running = asyncio.create_task(TryItOutProcessor(broker).process(dry_run("q", "dry")))
        await soon(trying)
        await broker.publish("real", "q", timer_id="t")
        await soon(rearmed)
        tried.set()
        await running
    assert stored == [2]
