"""Pipelines and clients of a cluster: a message joins the MULTI of one slot, and of no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import RedisCluster as Client

from nightmail.errors import CannotJoin, NotInTransaction
from nightmail.outcome import Done, Standing
from nightmail.store import Settlement
from testkit.servers.redis_cluster import RedisCluster
from tests.stores.redis_support import LEASE, QUEUE, claim, message, open_store, until

pytestmark = [pytest.mark.redis, pytest.mark.slow]
pytest_plugins = ["testkit.cluster_fixtures"]


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> RedisCluster:
    redis_cluster.revive()
    redis_cluster.flush()
    return redis_cluster


@asynccontextmanager
async def client(cluster: RedisCluster) -> AsyncIterator[Any]:
    own = Client.from_url(cluster.url.replace("redis+cluster://", "redis://"))
    try:
        yield own
    finally:
        await own.aclose()


async def test_a_message_joins_the_commands_of_its_slot(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store, client(cluster) as own:
        order = f"{store.tag(QUEUE)}:my-order"
        async with own.pipeline(transaction=True) as pipe:
            pipe.set(order, "1")
            id_ = await store.publish(message(b"hello"), transaction=pipe)
            ids = await store.publish_batch([message(b"a"), message(b"b")], transaction=pipe)
            assert await store.peek() == []
            await pipe.execute()

        assert await own.get(order) == b"1"
        assert [delivery.id for delivery in await claim(store)] == [id_, *ids]


async def test_commands_of_another_slot_are_refused_with_the_way_out(cluster: RedisCluster) -> None:
    async with (
        open_store(cluster.url) as store,
        client(cluster) as own,
        own.pipeline(transaction=True) as pipe,
    ):
        pipe.set("my-order", "1")
        with pytest.raises(CannotJoin, match=r"store\.tag\(queue\)"):
            await store.publish(message(), transaction=pipe)
        assert len(pipe) == 1


async def test_a_batch_over_several_slots_is_refused_in_a_pipeline(cluster: RedisCluster) -> None:
    async with (
        open_store(cluster.url) as store,
        client(cluster) as own,
        own.pipeline(transaction=True) as pipe,
    ):
        with pytest.raises(CannotJoin, match="slot"):
            await store.publish_batch([message(), message(queue="refunds")], transaction=pipe)
        assert len(pipe) == 0


async def test_a_pipeline_without_multi_is_refused(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store, client(cluster) as own, own.pipeline() as pipe:
        with pytest.raises(NotInTransaction, match="MULTI"):
            await store.publish(message(), transaction=pipe)


async def test_a_client_is_a_source_and_several_queues_are_served_and_heard(cluster: RedisCluster) -> None:
    queues = [f"queue {number}" for number in range(6)]
    async with client(cluster) as own, open_store(own) as store:
        with store.listen(queues) as bell:
            await until(lambda: store.listening)
            for queue in queues:
                bell.clear()
                await store.publish(message(queue=queue))
                assert await bell.wait(5)
        claimed = await store.claim(queues, limit=100, lease=LEASE, token=uuid4())
        held = await store.extend(claimed.deliveries, LEASE)
        settled = await store.settle([Settlement(delivery, Done()) for delivery in claimed.deliveries])

        assert sorted(delivery.queue for delivery in claimed.deliveries) == queues
        assert held == settled == [Standing.HELD] * 6
