"""On Redis a handler's commands and the end of its message are one MULTI."""

from __future__ import annotations

import pytest
from faststream.exceptions import FeatureNotSupportedException
from redis.asyncio import Redis

from nightmail.annotations import OutboxMessage
from nightmail.errors import CannotJoin
from nightmail.outcome import Done, Release, Retry
from nightmail.store import Settlement
from tests.broker.support import AT_ONCE, Heard, Make, in_memory, started

on_redis = pytest.mark.parametrize("url", ["redis"], indirect=True)


@on_redis
async def test_the_effect_and_the_end_of_the_message_are_one(make: Make, heard: Heard, url: str) -> None:
    client: Redis = Redis.from_url(url)
    broker = make()

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with msg.transaction(client) as pipe:
            pipe.incr("effects")
            await broker.publish("next", "later", session=pipe, activate_in=3600)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])
        assert [waiting.body for waiting in await broker.pending()] == [b"next"]

    assert await client.get("effects") == b"1"
    assert heard.outcomes == []
    await client.aclose()


@on_redis
async def test_a_worker_that_lost_the_lease_has_no_effect(make: Make, heard: Heard, url: str) -> None:
    client: Redis = Redis.from_url(url)
    broker, runs = make(), []

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        runs.append(msg.id)
        first = len(runs) == 1
        async with msg.transaction(client) as pipe:
            pipe.incr("effects")
            if first:
                # It goes to another worker while the commands are being gathered.
                await broker.store.settle([Settlement(msg.delivery, Release())])

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent] and heard.lost == [sent])

    assert await client.get("effects") == b"1"
    assert heard.errors == []
    await client.aclose()


@on_redis
async def test_a_block_that_raises_has_no_effect_and_the_message_is_retried(
    make: Make, heard: Heard, url: str
) -> None:
    client: Redis = Redis.from_url(url, decode_responses=True)
    broker = make(retry=AT_ONCE)

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        async with msg.transaction(client) as pipe:
            pipe.incr("effects")
            if msg.attempt == 1:
                raise RuntimeError("half-way")

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.acked == [sent])

    assert await client.get("effects") == "1"
    assert heard.of(sent) == [Retry()]
    await client.aclose()


@on_redis
async def test_a_pipeline_that_watches_nothing_is_refused_and_the_message_is_not_taken_for_done(
    make: Make, heard: Heard, url: str
) -> None:
    client: Redis = Redis.from_url(url)
    broker, refused = make(retry=AT_ONCE), []

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        if msg.attempt > 1:
            return
        async with client.pipeline(transaction=True) as pipe:
            with pytest.raises(CannotJoin, match="transaction"):
                await msg.ack(session=pipe)
            refused.append(msg.id)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: Done() in heard.of(sent))

    assert refused == [sent]
    assert heard.of(sent) == [Retry(), Done()]
    await client.aclose()


@in_memory
async def test_other_stores_point_to_the_session(make: Make, heard: Heard) -> None:
    broker, refused = make(), []

    @broker.subscriber("q")
    async def handle(body: str, msg: OutboxMessage) -> None:
        with pytest.raises(FeatureNotSupportedException, match="ack\\(session"):
            async with msg.transaction(object()):
                pass
        refused.append(msg.id)

    async with started(broker):
        sent = await broker.publish("tea", "q")
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert refused == [sent]
