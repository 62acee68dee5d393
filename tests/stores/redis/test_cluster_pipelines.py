"""Pipelines and clients of a cluster: a message joins the MULTI of one slot, and of no other."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import TransactionStrategy
from redis.exceptions import ConnectionError as RedisConnectionError

from nightmail.errors import CannotJoin, LeaseLost, NotInTransaction, StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import Done, WriteResult
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from testkit.servers.redis_cluster import RedisCluster
from tests.stores.redis.support import cluster_client, open_store, transaction
from tests.stores.support import claim, until

pytestmark = [pytest.mark.redis, pytest.mark.slow]
pytest_plugins = ["testkit.cluster_fixtures"]


async def test_a_message_joins_the_commands_of_its_slot(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store, cluster_client(cluster.url) as own:
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
        cluster_client(cluster.url) as own,
        own.pipeline(transaction=True) as pipe,
    ):
        pipe.set("my-order", "1")
        with pytest.raises(CannotJoin, match=r"store\.tag\(queue\)"):
            await store.publish(message(), transaction=pipe)
        assert len(pipe) == 1


async def test_a_batch_over_several_slots_is_refused_in_a_pipeline(cluster: RedisCluster) -> None:
    async with (
        open_store(cluster.url) as store,
        cluster_client(cluster.url) as own,
        own.pipeline(transaction=True) as pipe,
    ):
        with pytest.raises(CannotJoin, match="slot"):
            await store.publish_batch([message(), message(queue="refunds")], transaction=pipe)
        assert len(pipe) == 0


async def test_a_pipeline_without_multi_is_refused(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store, cluster_client(cluster.url) as own, own.pipeline() as pipe:
        with pytest.raises(NotInTransaction, match="MULTI"):
            await store.publish(message(), transaction=pipe)


async def test_a_client_is_a_source_and_several_queues_are_served_and_heard(cluster: RedisCluster) -> None:
    queues = [f"queue {number}" for number in range(6)]
    async with cluster_client(cluster.url) as own, open_store(own) as store:
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
        assert held == settled == [WriteResult.WRITTEN] * 6


# ------------------------------------------------------------------------------ acknowledging in one


async def running(store: RedisStore) -> Delivery:
    await store.publish(message())
    (delivery,) = await claim(store)
    return delivery


async def test_the_commands_and_the_end_of_the_message_go_together(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store, cluster_client(cluster.url) as own:
        balance = f"{store.tag(QUEUE)}:balance"
        delivery = await running(store)
        async with transaction(store, [delivery], own) as pipe:
            pipe.incr(balance)
            new = await store.publish(message(b"next"), transaction=pipe)
            await store.ack([delivery], transaction=pipe)
            assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]

        assert await own.get(balance) == b"1"
        assert [(each.id, each.body) for each in await store.peek()] == [(new, b"next")]
        assert (await store.stats())[QUEUE].running == 0


async def test_a_takeover_while_the_block_runs_leaves_nothing_of_its_commands(cluster: RedisCluster) -> None:
    clock = ManualClock()
    async with open_store(cluster.url, clock=clock) as store, cluster_client(cluster.url) as own:
        balance = f"{store.tag(QUEUE)}:balance"
        late = await running(store)
        with pytest.raises(LeaseLost) as lost:
            async with transaction(store, [late], own) as pipe:
                pipe.incr(balance)
                clock.advance(LEASE)
                (other,) = await claim(store)

        assert lost.value.ids == (late.id,)
        assert await own.get(balance) is None
        assert await store.settle([Settlement(other, Done())]) == [WriteResult.WRITTEN]


async def test_a_block_that_raises_leaves_nothing(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store, cluster_client(cluster.url) as own:
        balance = f"{store.tag(QUEUE)}:balance"
        delivery = await running(store)
        with pytest.raises(ZeroDivisionError):
            async with transaction(store, [delivery], own) as pipe:
                pipe.incr(balance)
                raise ZeroDivisionError

        assert await own.get(balance) is None
        assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]


async def test_a_connection_lost_in_the_block_carries_out_nothing_though_the_driver_would_make_a_new_one(
    cluster: RedisCluster,
) -> None:
    clock = ManualClock()
    async with open_store(cluster.url, clock=clock) as store, cluster_client(cluster.url) as own:
        balance = f"{store.tag(QUEUE)}:balance"
        late = await running(store)
        with pytest.raises(StoreUnavailable):
            async with transaction(store, [late], own) as pipe:
                pipe.incr(balance)
                clock.advance(LEASE)
                await claim(store)
                connection: Any = pipe._execution_strategy._transaction_connection
                # As when the network goes: the driver has not noticed yet.
                connection._writer.transport.abort()

        assert await own.get(balance) is None


async def test_a_connection_lost_while_executing_is_not_tried_again_without_what_was_watched(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with open_store(cluster.url, clock=clock) as store, cluster_client(cluster.url) as own:
        balance = f"{store.tag(QUEUE)}:balance"
        late = await running(store)
        execute = TransactionStrategy._execute_transaction
        tried: list[None] = []

        async def torn(strategy: Any, *arguments: Any) -> Any:
            tried.append(None)
            if len(tried) == 1:
                raise RedisConnectionError
            return await execute(strategy, *arguments)

        monkeypatch.setattr(TransactionStrategy, "_execute_transaction", torn)
        with pytest.raises(StoreUnavailable, match="together, or neither"):
            async with transaction(store, [late], own) as pipe:
                pipe.incr(balance)
                clock.advance(LEASE)
                await claim(store)

        assert len(tried) == 1
        assert await own.get(balance) is None


async def test_keys_of_another_slot_are_refused_with_the_way_out(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store, cluster_client(cluster.url) as own:
        delivery = await running(store)
        with pytest.raises(CannotJoin, match=r"store\.tag\(queue\)"):
            async with transaction(store, [delivery], own) as pipe:
                pipe.incr("balance")
        with pytest.raises(CannotJoin, match=r"store\.tag\(queue\)"):
            async with transaction(store, [delivery], own) as pipe:
                await store.publish(message(queue="refunds"), transaction=pipe)

        assert await own.get("balance") is None
        assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]


async def test_messages_of_several_slots_cannot_end_together(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store, cluster_client(cluster.url) as own:
        await store.publish(message(queue="refunds"))
        deliveries = [await running(store), *await claim(store, queue="refunds")]
        with pytest.raises(CannotJoin, match="different slots"):
            async with transaction(store, deliveries, own):
                pytest.fail("the block ran")


async def test_a_client_of_one_server_is_refused(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        delivery = await running(store)
        with pytest.raises(CannotJoin, match="RedisCluster"):
            async with transaction(store, [delivery], Redis()):
                pytest.fail("the block ran")
