"""The test broker: FastStream's scenarios of this name."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from faststream import BaseMiddleware, Context, FastStream, TestApp
from faststream.middlewares import AckPolicy
from pydantic import BaseModel

from nightmail import OutboxBroker, OutboxRouter, Release, TestOutboxBroker, Undecodable
from tests.broker.support import Heard, Make, soon


class Question(BaseModel):
    number: int


class Answer(BaseModel):
    number: int


async def test_no_subscriber_is_added_or_left_behind(make: Make) -> None:
    broker = make()

    @broker.subscriber("a")
    async def take(body: str) -> None: ...

    publishers = [broker.publisher("a"), broker.publisher("b")]

    for _ in range(2):
        async with TestOutboxBroker(broker) as br:
            await publishers[1].publish("x")
            gc.collect()
            assert len(br.subscribers) == 1
        assert len(broker.subscribers) == 1
        assert len(broker.publishers) == 2


async def test_a_handler_has_a_mock(make: Make) -> None:
    broker = make()

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish("hello", "q")

        take.mock.assert_called_once_with("hello")


async def test_a_publisher_has_a_mock(make: Make) -> None:
    broker = make()
    publisher = broker.publisher("next")

    @publisher
    @broker.subscriber("q")
    async def answer(body: str) -> str:
        return "response"

    async with TestOutboxBroker(broker) as br:
        await br.publish("hello", "q")

        publisher.mock.assert_called_once_with("response")


async def test_a_publisher_and_the_handler_it_reaches_both_have_mocks(make: Make) -> None:
    broker = make()
    publisher = broker.publisher("next")

    @publisher
    @broker.subscriber("q")
    async def answer(body: str) -> str:
        return "response"

    @broker.subscriber("next")
    async def take(body: str) -> None: ...

    async with TestOutboxBroker(broker) as br:
        await br.publish("hello", "q")

        publisher.mock.assert_called_once_with("response")
        take.mock.assert_called_once_with("response")


async def test_a_publisher_called_by_hand_has_a_mock(make: Make) -> None:
    broker = make()
    publisher = broker.publisher("next")

    @broker.subscriber("q")
    async def answer(body: str) -> None:
        await publisher.publish("response")

    async with TestOutboxBroker(broker) as br:
        await br.publish("hello", "q")

        publisher.mock.assert_called_once_with("response")


async def test_mocks_work_for_what_a_router_brings(make: Make) -> None:
    broker, router = make(), OutboxRouter(prefix="shop.")
    publisher = router.publisher("next")
    by_hand = router.publisher("by-hand")

    @router.subscriber("q")
    @publisher
    async def answer(body: str) -> str:
        await by_hand.publish("hi")
        return "response"

    broker.include_router(router)

    async with TestOutboxBroker(broker) as br:
        await br.publish("hello", "shop.q")

        answer.mock.assert_called_once_with("hello")
        publisher.mock.assert_called_once_with("response")
        by_hand.mock.assert_called_once_with("hi")


async def test_a_router_may_be_tested_with_one_broker_after_the_other(make: Make) -> None:
    router = OutboxRouter()
    seen: list[Any] = []

    @router.subscriber("q")
    async def take(broker: Any = Context()) -> str:
        seen.append(broker)
        return "x"

    one, two = make(), make()
    for broker in (one, two):
        broker.include_router(router)
        async with TestOutboxBroker(broker) as br:
            await br.publish({}, "q")

    assert seen == [one, two]


async def test_what_a_handler_raises_comes_out_of_publish(make: Make) -> None:
    broker = make()

    @broker.subscriber("q")
    async def fail(body: str) -> None:
        raise ValueError("no")

    async with TestOutboxBroker(broker) as br:
        with pytest.raises(ValueError, match="no"):
            await br.publish("hello", "q")


async def test_what_a_parser_raises_comes_out_of_publish(make: Make) -> None:
    def parser(msg: Any) -> Any:
        raise ValueError("no")

    broker = make()
    broker.subscriber("q", parser=parser)(Nothing().take)

    async with TestOutboxBroker(broker) as br:
        with pytest.raises(Undecodable) as raised:
            await br.publish("hello", "q")

    assert isinstance(raised.value.__cause__, ValueError)


class Nothing:
    async def take(self, body: str) -> None: ...


async def test_nothing_reaches_the_real_store(make: Make) -> None:
    broker = make()
    broker.subscriber("q")(Nothing().take)

    async with broker:
        async with TestOutboxBroker(broker) as br:
            await br.publish("test", "q", activate_in=3600)
            assert len(await br.pending("q")) == 1

        assert await broker.pending("q") == []
        await broker.publish("real", "q")
        assert len(await broker.pending("q")) == 1


async def test_with_the_real_store_everything_is_real_and_mocks_still_work(make: Make) -> None:
    broker = make()
    publisher = broker.publisher("next")

    @broker.subscriber("q")
    async def answer(body: str) -> None:
        await publisher.publish(f"response: {body}")

    async with TestOutboxBroker(broker, with_real=True) as br:
        assert br.store is broker.store
        await br.publish("hello", "q")
        await answer.wait_call(15)

        answer.mock.assert_called_once_with("hello")
        publisher.mock.assert_called_once_with("response: hello")
        assert len(await br.pending("next")) == 1


async def test_with_the_real_store_no_worker_is_left(make: Make) -> None:
    broker = make()
    publisher, subscriber = broker.publisher("next"), broker.subscriber("q")
    subscriber(Nothing().take)

    async with TestOutboxBroker(broker, with_real=True) as br:
        # FastStream adds a subscriber for each publisher; here that would take real messages out of a real queue.
        assert list(br.subscribers) == [subscriber]
        assert subscriber.running
        await publisher.publish("kept")

    assert not subscriber.running
    async with broker:
        assert [waiting.body for waiting in await broker.pending("next")] == [b"kept"]


async def test_brokers_in_one_test_reach_each_other(url: str) -> None:
    one = OutboxBroker(url, create_tables=True, logger=None)
    two = OutboxBroker(url, create_tables=True, logger=None)

    @one.subscriber("q")
    @two.publisher("next")
    async def answer(body: str) -> str:
        return body

    @one.subscriber("next")
    async def take(body: str) -> None: ...

    async with TestOutboxBroker(one, two) as (br, _), TestApp(FastStream(one, two, logger=None)):
        await br.publish("hello", "q")

        take.mock.assert_called_once_with("hello")


async def test_a_model_is_answered_with_a_model(make: Make) -> None:
    broker = make()
    publisher = broker.publisher("next")

    @broker.subscriber("q")
    @publisher
    async def answer(question: Question) -> Answer:
        return Answer(number=question.number)

    async with TestOutboxBroker(broker) as br:
        await br.publish(Question(number=1), "q")
        reply: Any = await br.request(Question(number=2), "q")

        assert json.loads(reply.body) == {"number": 2}
        assert publisher.mock.call_count == 2


# ── a handler that is cancelled has no decision ─────────────────────────────────────────────────────────────

every_policy = pytest.mark.parametrize(
    "policy", [AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR, AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL]
)


class Endless:
    """A handler that never ends by itself."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def take(self, body: str) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@every_policy
async def test_a_handler_that_a_shutdown_cancels_is_neither_acked_nor_nacked_nor_rejected(
    make: Make, heard: Heard, policy: AckPolicy
) -> None:
    broker, endless = make(ack_policy=policy, graceful_timeout=0.05), Endless()
    broker.subscriber("q")(endless.take)

    await broker.start()
    sent = await broker.publish("hello", "q")
    await soon(endless.started)
    await broker.stop()

    assert endless.cancelled.is_set()
    assert (heard.of(sent), heard.errors) == ([Release()], [])
    async with broker:
        (waiting,) = await broker.pending("q")
        assert (waiting.id, waiting.attempts) == (sent, 0)
        assert await broker.dead_letters() == []


@every_policy
async def test_a_handler_that_is_cancelled_with_its_publish_is_neither_acked_nor_nacked_nor_rejected(
    make: Make, policy: AckPolicy
) -> None:
    broker, endless = make(ack_policy=policy), Endless()
    broker.subscriber("q")(endless.take)

    tb = TestOutboxBroker(broker)
    async with tb as br:
        publishing = asyncio.create_task(br.publish("hello", "q"))
        await soon(endless.started)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing

        assert endless.cancelled.is_set()
        (waiting,) = await tb.pending("q")
        assert waiting.attempts == 0
        assert (await tb.dead_letters(), tb.errors) == ([], [])


# ── requests: only here, where the answer is there at once ─────────────────────────────────────────────────


async def test_a_request_is_answered(make: Make) -> None:
    broker, router = make(), OutboxRouter(prefix="shop.")

    @router.subscriber("q")
    async def answer(body: Any) -> str:
        return "Response"

    broker.include_router(router)

    async with TestOutboxBroker(broker) as br:
        reply: Any = await br.request(None, "shop.q", timeout=5, correlation_id="1")

    assert await reply.decode() == "Response"


async def test_a_request_does_not_wait_for_ever(make: Make) -> None:
    broker = make()

    @broker.subscriber("q")
    async def answer(body: Any) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    async with TestOutboxBroker(broker) as br:
        with pytest.raises(TimeoutError):
            await br.request(None, "q", timeout=0.01)


async def test_a_request_goes_through_the_middlewares(make: Make) -> None:
    class Doubled(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.body = cmd.body * 2
            return await call_next(cmd)

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            msg.body *= 2  # The message's, and then the answer's.
            return await call_next(msg)

    broker = make(middlewares=(Doubled,))

    @broker.subscriber("q")
    async def answer(body: str) -> str:
        return body

    async with TestOutboxBroker(broker) as br:
        reply: Any = await br.request("x", "q", timeout=5)

    assert await reply.decode() == "x" * 8
