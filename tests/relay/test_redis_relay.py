"""Messages go on to a real Redis: to its streams and lists, which keep them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faststream.exceptions import SetupError
from faststream.redis import RedisBroker, RedisMessage, StreamSub

from testkit.servers.redis import Redis
from tests.broker.support import soon, started
from tests.relay.support import BYTES, SOON, Patient, box, done


@pytest.fixture
def heard() -> Patient:
    return Patient()


def quiet(url: str = "redis://localhost") -> RedisBroker:
    return RedisBroker(url, logger=None)  # type: ignore[arg-type]  # `None` is what its documentation says.


@pytest.mark.redis
@pytest.mark.parametrize("kind", ["stream", "list"])
async def test_a_relayed_message_arrives_as_it_was_published(
    redis_url: str, kind: str, heard: Patient
) -> None:
    redis, outbox, arrived = quiet(redis_url), box(heard), asyncio.Event()
    got: list[RedisMessage] = []
    where: dict[str, Any] = {kind: StreamSub("orders", last_id="0") if kind == "stream" else "orders"}

    @redis.subscriber(**where)
    async def take(message: RedisMessage) -> None:
        got.append(message)
        arrived.set()

    there = redis.publisher(stream="orders") if kind == "stream" else redis.publisher(list="orders")
    outbox.relay("orders", to=there)

    async with redis, started(outbox):
        await redis.start()
        headers = {"content-type": "application/x-tea", "shop": "north", "number": 3}
        sent = await outbox.publish(BYTES, "orders", headers=headers, correlation_id="c-1")
        await soon(arrived)

    (message,) = got
    assert message.body == BYTES
    assert message.content_type == "application/x-tea"
    assert message.correlation_id == "c-1"
    assert (message.headers["shop"], message.headers["number"]) == ("north", "3")
    assert message.headers["nightmail-message-id"].startswith(f"orders:{sent}:")


def test_a_relay_to_a_channel_is_refused() -> None:
    redis, outbox = quiet(), box(Patient())

    with pytest.raises(SetupError, match="keeps nothing for who does not listen"):
        outbox.relay("orders", to=redis.publisher("orders"))

    assert outbox.subscribers == []


@pytest.mark.redis
async def test_nothing_is_lost_when_redis_is_killed_on_the_way(
    redis_server: Redis, redis_url: str, heard: Patient
) -> None:
    count = 300
    redis, outbox = quiet(redis_url), box(heard, retry=SOON)
    outbox.relay("orders", to=redis.publisher(list="orders"))

    async with redis, started(outbox):
        await redis.start()
        await outbox.publish_batch(*(f"order {number}" for number in range(count)), queue="orders")
        await heard.until(lambda: done(heard) >= count // 3)
        await asyncio.to_thread(redis_server.kill)
        await asyncio.to_thread(redis_server.start)
        await heard.until(lambda: done(heard) == count)
        client: Any = redis._connection
        arrived: list[bytes] = await client.lrange("orders", 0, -1)

    for number in range(count):
        assert any(each.endswith(f"order {number}".encode()) for each in arrived), number
