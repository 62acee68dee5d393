"""The types of what a FastStream application uses. Nothing here runs: mypy reads it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from faststream import AckPolicy, ContextRepo
from faststream.rabbit import RabbitBroker
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from nightmail import (
    ConstantRetry,
    ExponentialRetry,
    Finding,
    OutboxBroker,
    OutboxResponse,
    OutboxRoute,
    OutboxRoutePublisher,
    OutboxRouter,
    QueueStatus,
    SyncPublisher,
)
from nightmail import annotations as ours
from nightmail.broker.call_assertions import OutboxHandlerCallWrapper
from nightmail.broker.message import OutboxBatchMessage, OutboxMessage
from nightmail.broker.publisher import OutboxPublisher
from nightmail.broker.subscriber import OutboxSubscriber
from nightmail.message import DeadDelivery, Delivery
from nightmail.records import DeadLetter, DeadSummary, PendingMessage, QueueStats, StoredMessage
from nightmail.store import FullStore
from nightmail.testing import Published, TestOutboxBroker


def brokers(
    engine: AsyncEngine, client: Redis, store: FullStore, make: async_sessionmaker[AsyncSession]
) -> None:
    assert_type(OutboxBroker(), OutboxBroker)
    OutboxBroker("postgresql://localhost/shop", tables="mail", create_tables=False, keep_delivered=True)
    OutboxBroker(engine, session_factory=make)
    OutboxBroker(client)
    OutboxBroker(store)
    OutboxBroker(
        max_workers=5,
        lease_ttl_seconds=30,
        retry=ExponentialRetry(initial=1, maximum=timedelta(minutes=1)),
        handler_timeout=60,
        give_up_after=timedelta(days=1),
        graceful_timeout=None,
        ack_policy=AckPolicy.REJECT_ON_ERROR,
        routers=[OutboxRouter()],
        logger=None,
        serializer=None,
        apply_types=False,
    )
    assert_type(OutboxBroker().store, FullStore)


async def publishing(broker: OutboxBroker, session: AsyncSession) -> None:
    assert_type(await broker.publish("x", "q"), int | None)
    await broker.publish(
        {"a": 1}, queue="q", activate_in=5, headers={"a": 1}, correlation_id="1", reply_to="r"
    )
    await broker.publish(b"x", "q", activate_in=timedelta(days=1), timer_id="t", on_conflict="replace")
    await broker.publish(None, "q", activate_at=datetime.now(UTC), expires_in=1.5, session=session)
    await broker.publish([1], "q", timer_id="t", dedup_for=timedelta(hours=1), ordering_key="k", priority=9)
    assert_type(await broker.publish_batch("x", 1, queue="q", priority=1), list[int])
    assert_type(SyncPublisher(broker).publish("x", "q", session=object()), int | None)
    assert_type(SyncPublisher(broker).publish_batch("x", queue="q", session=object()), list[int])


async def publishers(broker: OutboxBroker, router: OutboxRouter) -> None:
    publisher = broker.publisher("q", activate_in=5, title="Later", schema=int)
    assert_type(publisher, OutboxPublisher)
    assert_type(router.publisher("q"), OutboxPublisher)
    assert_type(await publisher.publish("x", priority=3), int | None)
    await publisher.publish("x", "elsewhere")
    assert_type(publisher.queue, str)


def subscribers(broker: OutboxBroker, router: OutboxRouter) -> None:
    assert_type(broker.subscriber("a"), OutboxSubscriber)
    assert_type(router.subscriber("a", "b", batch=True, max_batch=10), OutboxSubscriber)
    broker.subscriber(
        "a",
        max_workers=1,
        retry=ConstantRetry(delay=1),
        ack_policy=AckPolicy.MANUAL,
        no_reply=True,
        persistent=False,
        title="A",
        description="B",
        include_in_schema=False,
        dead_letters=True,
    )
    assert_type(broker.subscriber("a").queues, tuple[str, ...])

    async def handle(body: str) -> None: ...

    OutboxRouter("shop.", [OutboxRoute(handle, "q", publishers=[OutboxRoutePublisher("r")], max_workers=1)])


def wrapping(broker: OutboxBroker) -> None:
    async def handle(body: str, /) -> None: ...

    wrapped = broker.subscriber("a")(handle)
    assert_type(wrapped, OutboxHandlerCallWrapper[[str], Coroutine[Any, Any, None]])
    assert_type(broker.publisher("a")(handle), OutboxHandlerCallWrapper[[str], Coroutine[Any, Any, None]])
    assert_type(broker.publisher("a")(wrapped), OutboxHandlerCallWrapper[[str], Coroutine[Any, Any, None]])
    decorator: Callable[[Callable[[str], Any]], OutboxHandlerCallWrapper[[str], Any]] = broker.subscriber(
        "a"
    )(filter=lambda message: True)
    decorator(handle)


def relaying(broker: OutboxBroker, router: OutboxRouter, rabbit: RabbitBroker) -> None:
    assert_type(broker.relay("a", "b", to=rabbit.publisher("orders")), OutboxSubscriber)
    assert_type(router.relay("a", to=broker.publisher("q"), id_prefix="shop-"), OutboxSubscriber)
    broker.relay("a", to=rabbit.publisher("orders"), max_workers=2, dead_letters=True, title="A")


async def taking(subscriber: OutboxSubscriber) -> None:
    assert_type(await subscriber.get_one(timeout=1), OutboxMessage | None)
    async for message in subscriber:
        assert_type(message, OutboxMessage)
    assert_type(subscriber.__aiter__(), AsyncIterator[OutboxMessage])


def asking(logger: ours.Logger, context: ours.ContextRepo, body: ours.NoCast[int]) -> None:
    assert_type(logger, logging.Logger)
    assert_type(context, ContextRepo)
    assert_type(body, int)


async def handler(body: dict[str, Any], msg: ours.OutboxMessage, broker: ours.OutboxBroker) -> OutboxResponse:
    assert_type(msg, OutboxMessage)
    assert_type(broker, OutboxBroker)
    return OutboxResponse(body, activate_in=timedelta(hours=1), timer_id="t")


async def batch_handler(bodies: list[int], msg: ours.OutboxBatchMessage, session: ours.OutboxSession) -> None:
    assert_type(msg, OutboxBatchMessage)
    assert_type(session, AsyncSession)
    for item in msg.items:
        assert_type(item, OutboxMessage)
        await item.ack()
    await msg.nack(delay=5)


async def messages(msg: OutboxMessage, session: AsyncSession) -> None:
    assert_type(msg.id, int)
    assert_type(msg.queue, str)
    assert_type(msg.attempt, int)
    assert_type(msg.deliveries, int)
    assert_type(msg.due_at, datetime)
    assert_type(msg.timer_id, str | None)
    assert_type(msg.ordering_key, str | None)
    assert_type(msg.delivery, Delivery)
    assert_type(msg.dead, DeadDelivery | None)
    assert_type(msg.headers, dict[str, Any])
    await msg.ack()
    await msg.ack(session=session)
    await msg.nack(delay=timedelta(minutes=1))
    await msg.reject(reason="no")
    await msg.postpone(60)
    await msg.extend(60)
    await msg.hold(session)


async def timers(broker: OutboxBroker) -> None:
    assert_type(await broker.cancel_timer("q", "t"), bool)
    assert_type(await broker.reschedule_timer("q", "t", activate_in=5), bool)
    assert_type(await broker.has_pending("q", "t"), bool)
    assert_type(await broker.pending("q", limit=1), list[PendingMessage])
    assert_type(await broker.cancel_all("q"), int)


async def operating(broker: OutboxBroker) -> None:
    assert_type(await broker.stats(), dict[str, QueueStats])
    assert_type(await broker.find(7), list[StoredMessage])
    assert_type(await broker.status("orders", over=2), list[QueueStatus])
    assert_type(await broker.doctor(), list[Finding])
    assert_type(await broker.summarize_dead("q", error="no"), DeadSummary)
    assert_type(await broker.dead_letters("q", reason="rejected", older_than=60), list[DeadLetter])
    assert_type(await broker.redrive("q", to="r", limit=5, rate=10), int)
    assert_type(await broker.purge_dead(everything=True), int)
    assert_type(await broker.ping(timeout=1), bool)


async def testing(one: OutboxBroker, two: OutboxBroker) -> None:
    tb = TestOutboxBroker(one)
    async with tb as br:
        assert_type(br, OutboxBroker)
        await tb.advance(timedelta(days=30))
        await tb.run()
        assert_type(await tb.pending("q"), list[PendingMessage])
        assert_type(await tb.dead_letters("q", reason="rejected"), list[DeadLetter])
    assert_type(tb.published, list[Published])
    assert_type(tb.published[0].delay, timedelta)
    assert_type(tb.errors, list[Exception])
    async with TestOutboxBroker(one, two) as both:
        assert_type(both, list[OutboxBroker])
    assert_type(tb.now, datetime)


async def call_assertions(
    handle: OutboxHandlerCallWrapper[[str], Coroutine[Any, Any, None]], publisher: OutboxPublisher
) -> None:
    await handle.assert_called_once_with("x", timer_id="t", activate_in=5, queue="q", priority=3)
    await handle.assert_called_with(activate_in=timedelta(days=1), ordering_key=None, headers={"a": 1})
    await publisher.assert_any_call("x", activate_at=datetime.now(UTC), expires_in=60, correlation_id="c")
    assert_type(await publisher.assert_called_once_with("x"), None)
