"""An acknowledgement in a transaction that was refused is none, also when the error is swallowed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from faststream import AckPolicy
from redis.asyncio import Redis

from nightmail.annotations import OutboxBatchMessage, OutboxMessage
from nightmail.errors import CannotJoin
from nightmail.outcome import Dead, Done, Retry
from tests.broker.callers import Ledger
from tests.broker.support import IN_A_MINUTE, MINUTE, Heard, Make, in_memory, on_sqlite, publish, started

on_redis = pytest.mark.parametrize("url", ["redis"], indirect=True)
policies = pytest.mark.parametrize(
    "policy", [AckPolicy.ACK, AckPolicy.REJECT_ON_ERROR, AckPolicy.NACK_ON_ERROR]
)


@pytest.fixture
async def client(url: str) -> AsyncIterator[Redis]:
    """The handler's own client of the same Redis."""
    made: Redis = Redis.from_url(url)
    yield made
    await made.aclose()


# ── every policy, also when it is swallowed ───────────────────────────────────────────────────────────────


@in_memory
@policies
async def test_no_policy_takes_a_refused_acknowledgement_for_anything_but_a_failure(
    make: Make, heard: Heard, policy: AckPolicy
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", ack_policy=policy)
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.ack(session="no session at all")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Retry(MINUTE)]
    assert heard.errors == ["CannotJoin"]


@in_memory
@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.NACK_ON_ERROR])
async def test_a_batch_whose_acknowledgement_was_refused_is_tried_again_even_where_failing_is_as_good_as_done(
    make: Make, heard: Heard, policy: AckPolicy
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True, ack_policy=policy)
    async def handle(bodies: list[str], msg: OutboxBatchMessage) -> None:
        await msg.ack(session="no session at all")

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert [heard.of(each) for each in sent] == [[Retry(MINUTE)], [Retry(MINUTE)]]


@in_memory
async def test_a_handler_that_swallows_the_refusal_is_not_done(make: Make, heard: Heard) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        with suppress(CannotJoin):
            await msg.ack(session="no session at all")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.of(sent)))

    assert heard.of(sent) == [Retry(MINUTE)]
    assert heard.errors == ["CannotJoin"]


@in_memory
async def test_an_item_of_a_batch_whose_refusal_was_swallowed_is_not_done_and_the_others_are(
    make: Make, heard: Heard
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str], msg: OutboxBatchMessage) -> None:
        with suppress(CannotJoin):
            await msg.items[0].ack(session="no session at all")

    first, second = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) == 2)

    assert heard.of(first) == [Retry(MINUTE)]
    assert heard.of(second) == [Done()]


@on_sqlite
async def test_an_acknowledgement_that_was_refused_may_be_made_good(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        with suppress(CannotJoin):
            await msg.ack(session="no session at all")
        async with ledger.sessions() as session, session.begin():
            await ledger.write(session, body)
            await msg.ack(session=session)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.acked or heard.outcomes))

    assert heard.acked == [sent]
    assert heard.errors == []
    assert await ledger.effects() == ["tea"]


@on_sqlite
async def test_an_item_of_a_batch_whose_acknowledgement_was_refused_may_be_made_good(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make(retry=IN_A_MINUTE)

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str], msg: OutboxBatchMessage) -> None:
        for body, item in zip(bodies, msg.items, strict=True):
            with suppress(CannotJoin):
                await item.ack(session="no session at all")
            async with ledger.sessions() as session, session.begin():
                await ledger.write(session, body)
                await item.ack(session=session)

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.acked) + len(heard.outcomes) == 2)

    assert sorted(heard.acked) == sent
    assert heard.errors == []
    assert await ledger.effects() == ["a", "b"]


# ── the first decision counts ────────────────────────────────────────────────────────────────────────────────


@on_sqlite
async def test_what_was_rejected_does_not_leave_with_a_later_transaction(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make()

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        await msg.reject("no such customer")
        async with ledger.sessions() as session, session.begin():
            await ledger.write(session, "marked as failed")
            await msg.ack(session=session)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.outcomes or heard.uncertainties))
        letters = await broker.dead_letters("q")

    assert heard.of(sent) == [Dead("no such customer")]
    assert [letter.reason for letter in letters] == ["no such customer"]
    assert await ledger.effects() == ["marked as failed"]


@on_sqlite
async def test_a_batch_that_was_rejected_does_not_leave_with_a_later_transaction(
    make: Make, heard: Heard, ledger: Ledger
) -> None:
    broker = make()

    @broker.subscriber("q", batch=True)
    async def handle(bodies: list[str], msg: OutboxBatchMessage) -> None:
        await msg.reject("no such customer")
        async with ledger.sessions() as session, session.begin():
            await ledger.write(session, "marked as failed")
            await msg.ack(session=session)

    sent = await publish(broker, "a", "b")
    async with started(broker):
        await heard.until(lambda: len(heard.outcomes) + len(heard.uncertainties) == 2)
        letters = await broker.dead_letters("q")

    assert [heard.of(each) for each in sent] == [[Dead("no such customer")]] * 2
    assert len(letters) == 2


# ── a transaction of Redis ────────────────────────────────────────────────────────────────────────────────


@on_redis
async def test_a_transaction_whose_reply_is_lost_leaves_a_message_whose_end_is_unknown(
    make: Make, heard: Heard, client: Redis
) -> None:
    broker = make(retry=IN_A_MINUTE)
    transaction = broker.store.transaction  # type: ignore[attr-defined]

    @asynccontextmanager
    async def carried_out(*what: Any) -> AsyncIterator[Any]:
        async with transaction(*what) as pipeline:
            yield pipeline
        raise ConnectionError("its reply is lost")

    broker.store.transaction = carried_out  # type: ignore[attr-defined]

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with msg.transaction(client) as pipeline:
            pipeline.incr("effects")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.lost or heard.uncertainties))

    assert heard.uncertainties == [sent]
    assert heard.lost == []
    assert await client.get("effects") == b"1"


@on_redis
@policies
async def test_no_policy_takes_a_transaction_that_was_not_executed_for_anything_but_a_failure(
    make: Make, heard: Heard, client: Redis, policy: AckPolicy
) -> None:
    broker = make(retry=IN_A_MINUTE)
    transaction = broker.store.transaction  # type: ignore[attr-defined]

    @asynccontextmanager
    async def not_executed(*what: Any) -> AsyncIterator[Any]:
        async with transaction(*what) as pipeline:
            yield pipeline
            raise ConnectionError("the server went away")

    broker.store.transaction = not_executed  # type: ignore[attr-defined]

    @broker.subscriber("q", ack_policy=policy)
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with msg.transaction(client) as pipeline:
            pipeline.incr("effects")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: bool(heard.outcomes))

    assert heard.of(sent) == [Retry(MINUTE)]
    assert await client.get("effects") is None
