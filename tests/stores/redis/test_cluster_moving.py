"""While a slot is moved its keys are in two places: the queue waits, and no caller sees half of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from redis.crc import key_slot

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.testing.conformance.build import LEASE, QUEUE, SECOND, message
from testkit.servers.redis_cluster import RedisCluster
from tests.stores.redis.support import cluster_client, open_store, transaction
from tests.stores.support import claim

pytestmark = [pytest.mark.redis, pytest.mark.slow]
pytest_plugins = ["testkit.cluster_fixtures"]


@contextmanager
def moving(cluster: RedisCluster, tag: str) -> Iterator[None]:
    """The slot of this tag is on its way to another master, and arrives there when the block ends."""
    slot = key_slot(tag.encode())
    source = cluster.master_of(slot)
    target = next(node for node in cluster.masters() if node is not source)
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
    try:
        yield
    finally:
        cluster.move_slot(slot, target)


async def test_a_queue_on_its_way_is_refused_with_certainty_and_is_whole_afterwards(
    cluster: RedisCluster,
) -> None:
    async with open_store(cluster.url) as store:
        await store.publish(message(b"before"))
        held = await claim(store)
        await store.publish(message(b"waiting"))

        with moving(cluster, store.tag(QUEUE)):
            for verb in (
                lambda: store.publish(message(b"never")),
                lambda: claim(store),
                lambda: store.extend(held, LEASE),
            ):
                with pytest.raises(StoreUnavailable, match="being moved") as refused:
                    await verb()
                assert not isinstance(refused.value, PublishUncertain)

        assert await store.extend(held, LEASE) == ["written"]
        assert [delivery.body for delivery in await claim(store)] == [b"waiting"]


async def test_a_queue_on_its_way_does_not_hold_up_the_others(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        await store.publish(message(b"on its way"))
        await store.publish(message(b"at home", queue="refunds"))

        with moving(cluster, store.tag(QUEUE)):
            claimed = await store.claim([QUEUE, "refunds"], limit=10, lease=LEASE, token=uuid4())

        assert [delivery.body for delivery in claimed.deliveries] == [b"at home"]
        assert claimed.next_in is not None
        assert claimed.next_in <= SECOND


async def test_a_transaction_whose_slot_moves_meanwhile_carries_out_nothing_and_can_be_repeated(
    cluster: RedisCluster,
) -> None:
    async with open_store(cluster.url) as store, cluster_client(cluster.url) as own:
        balance = f"{store.tag(QUEUE)}:balance"
        await store.publish(message())
        (delivery,) = await claim(store)
        with pytest.raises(StoreUnavailable, match="nothing was carried out"):
            async with transaction(store, [delivery], own) as pipe:
                pipe.incr(balance)
                with moving(cluster, store.tag(QUEUE)):
                    pass
        assert await own.get(balance) is None

        async with transaction(store, [delivery], own) as pipe:
            pipe.incr(balance)
        assert await own.get(balance) == b"1"
        assert await store.stats() == {}


async def test_a_transaction_in_a_slot_that_is_on_its_way_is_refused_before_the_block_runs(
    cluster: RedisCluster,
) -> None:
    async with open_store(cluster.url) as store, cluster_client(cluster.url) as own:
        await store.publish(message())
        (delivery,) = await claim(store)
        with moving(cluster, store.tag(QUEUE)), pytest.raises(StoreUnavailable, match="being moved"):
            async with transaction(store, [delivery], own):
                pytest.fail("the block ran")

        async with transaction(store, [delivery], own):
            pass
        assert await store.stats() == {}
