"""The keys on a cluster: what they are like, and from one version to the next."""

from __future__ import annotations

import asyncio

import pytest

from nightmail import Message, SchemaOutdated
from nightmail.stores.redis import RedisStore
from nightmail.testing.clock import ManualClock
from testkit.servers.redis_cluster import RedisCluster
from tests.schema import keys
from tests.schema.conftest import Database
from tests.schema.test_golden_schema import compare
from tests.schema.versions import broken, client, is_second, meta, opened, version_2
from tests.stores.redis.support import open_store

pytestmark = pytest.mark.redis
pytest_plugins = ["testkit.cluster_fixtures"]


async def test_the_keys_on_a_cluster_are_those_of_the_golden_file(cluster: RedisCluster) -> None:
    clock = ManualClock()
    async with open_store(cluster.url, clock=clock, keep_delivered=True) as store:
        await keys.fill(store, clock)

    with client(Database("redis", cluster.url)) as own:
        compare("redis.txt", keys.described(own))


async def test_a_step_reaches_every_slot_and_may_be_cut_short_and_taken_by_several_at_once(
    cluster: RedisCluster,
) -> None:
    database = Database("redis", cluster.url)
    queues = [f"queue {number}" for number in range(10)]
    async with open_store(cluster.url) as store:
        await publish(store, queues)
        with version_2(database, broken(database)):
            async with opened(database) as newer:
                with pytest.raises(Exception, match="Redis refused"):
                    await newer.migrate()
        assert (meta(database), is_second(database)) == ((1, 1), False)
        await publish(store, queues)

        with version_2(database):
            async with opened(database) as a, opened(database) as b, opened(database) as c:
                with pytest.raises(SchemaOutdated):
                    await a.check()
                await asyncio.gather(a.migrate(), b.migrate(), c.migrate())
                await a.check()

        assert (meta(database), is_second(database)) == ((2, 1), True)
        await store.check()
        assert {queue: stats.ready for queue, stats in (await store.stats()).items()} == dict.fromkeys(
            queues, 6
        )


async def publish(store: RedisStore, queues: list[str]) -> None:
    """More than a step changes at once."""
    for queue in queues:
        await store.publish_batch([Message(queue=queue, body=b"kept") for _ in range(3)])
