"""The map of a cluster, and nodes that are removed or do not answer: the rest of the cluster is used meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from uuid import uuid4

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.findings import Code
from nightmail.message import Delivery, Message
from nightmail.outcome import Done, WriteResult
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore
from nightmail.stores.redis.cluster.nodes import ClusterNodes
from nightmail.stores.redis.connect import Connector, connector_of
from nightmail.stores.redis.link import Link
from nightmail.testing.conformance.build import LEASE
from testkit.servers.redis import Redis
from testkit.servers.redis_cluster import RedisCluster, RedisNode
from tests.stores.redis.support import open_store
from tests.stores.shared.examining import findings

pytestmark = [pytest.mark.redis, pytest.mark.slow]
pytest_plugins = ["testkit.cluster_fixtures"]


def queues_at(cluster: RedisCluster, store: RedisStore, node: RedisNode, wanted: int) -> list[str]:
    """Names of queues whose keys are at this node."""
    slots = set(node.myself().slots)
    found = (f"queue {number}" for number in count())
    return [
        name for _, name in zip(range(wanted), (n for n in found if slot(store, n) in slots), strict=False)
    ]


def slot(store: RedisStore, queue: str) -> int:
    return ClusterNodes(connector_of("redis+cluster://localhost")).slot(store.tag(queue))


def registry_node(cluster: RedisCluster) -> RedisNode:
    return cluster.master_of(cluster.slot_of("{nightmail}:queues"))


# ---------------------------------------------------------------------------------------- the map


async def test_a_node_that_was_removed_does_not_make_the_client_lose_the_cluster(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(cluster.url) as store:
        await store.publish(Message(queue="a", body=b"before"))
        assert store._opened is not None
        nodes = store._opened.nodes
        assert isinstance(nodes, ClusterNodes)
        removed = nodes._known[0]
        ask = Link.ask

        async def ask_the_removed(link: Link, *commands: object) -> object:
            connection = link.connection
            if (
                isinstance(commands[0], tuple)
                and commands[0][0] == "CLUSTER"
                and (connection.host, connection.port) == removed
            ):
                return [[]]  # What a node answers that was reset: it has no slots and knows no other node.
            return await ask(link, *commands)  # type: ignore[arg-type]  # it is what was given

        monkeypatch.setattr(Link, "ask", ask_the_removed)
        for queue in ("a", "b", "c"):
            nodes.moved(store.tag(queue), None)
            assert await store.publish(Message(queue=queue, body=b"after")) is not None
        nodes._slots.clear()
        assert await store.publish(Message(queue="a", body=b"after")) is not None


async def test_a_cluster_that_tells_no_endpoints_is_used_where_it_was_found(cluster: RedisCluster) -> None:
    for node in cluster.nodes:
        await asyncio.to_thread(
            node.ask, "CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint"
        )
    try:
        async with open_store(cluster.url) as store:
            for queue in ("a", "b", "c", "d", "e"):
                assert await store.publish(Message(queue=queue, body=b"found")) is not None
            # A node that is asked for what it does not have tells only the port of the one that has it.
            assert store._opened is not None
            nodes = store._opened.nodes
            assert isinstance(nodes, ClusterNodes)
            wrong = dict(zip(nodes._slots, reversed(list(nodes._slots.values())), strict=True))
            nodes._slots = wrong
            claimed = await store.claim(["a", "b", "c", "d", "e"], limit=10, lease=LEASE, token=uuid4())
            assert len(claimed.deliveries) == 5
    finally:
        for node in cluster.nodes:
            await asyncio.to_thread(node.ask, "CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


async def test_a_known_node_that_does_not_answer_does_not_hold_up_learning_the_map(
    cluster: RedisCluster,
) -> None:
    deaf = Redis()
    source = connector_of(cluster.url)
    with deaf:
        deaf.pause()
        try:
            learning = ClusterNodes(
                Connector(
                    source.connect,
                    [("127.0.0.1", deaf.port), *(source.cluster or ())],
                    0,
                    source.place,
                )
            )
            async with asyncio.timeout(4):
                assert len(await learning.all()) == 3
        finally:
            deaf.resume()


# ------------------------------------------------------------------------- a node that does not answer


@pytest.mark.parametrize("has_the_list", [False, True])
async def test_while_one_node_does_not_answer_the_queues_of_the_others_are_served(
    cluster: RedisCluster, has_the_list: bool
) -> None:
    async with open_store(cluster.url) as store:
        registry = await asyncio.to_thread(registry_node, cluster)
        masters = await asyncio.to_thread(cluster.masters)
        another = next(node for node in masters if node is not registry)
        # The list of the queues is at one of the nodes: who has published to a queue before does not need it.
        frozen, healthy = (registry, another) if has_the_list else (another, registry)
        (bad,) = await asyncio.to_thread(queues_at, cluster, store, frozen, 1)
        (good,) = await asyncio.to_thread(queues_at, cluster, store, healthy, 1)
        for queue in (bad, good):
            await store.publish(Message(queue=queue, body=b"first"))
        replica = await asyncio.to_thread(cluster.replica_of, frozen)
        # The rest of the cluster serves on, and no replica takes over.
        for node in cluster.nodes:
            await asyncio.to_thread(node.ask, "CONFIG", "SET", "cluster-require-full-coverage", "no")
        await asyncio.to_thread(replica.pause)
        await asyncio.to_thread(frozen.pause)
        try:
            stuck = asyncio.ensure_future(store.publish(Message(queue=bad, body=b"stuck")))
            async with asyncio.timeout(8):
                for number in range(20):
                    await store.publish(Message(queue=good, body=b"%d" % number))
                found: list[Delivery] = []
                while len(found) < 21:
                    claimed = await store.claim([bad, good], limit=5, lease=LEASE, token=uuid4())
                    found += claimed.deliveries
                    assert await store.settle([Settlement(each, Done()) for each in claimed.deliveries]) == [
                        WriteResult.WRITTEN
                    ] * len(claimed.deliveries)
            assert not stuck.done()
        finally:
            await asyncio.to_thread(frozen.resume)
            await asyncio.to_thread(replica.resume)
            for node in cluster.nodes:
                await asyncio.to_thread(node.ask, "CONFIG", "SET", "cluster-require-full-coverage", "yes")
        await asyncio.wait([stuck])
        # What was leased there meanwhile without anybody's knowing is handed back before the next claim.
        async with asyncio.timeout(30):
            bodies: set[bytes] = set()
            while b"first" not in bodies:
                with suppress(StoreUnavailable):
                    claimed = await store.claim([bad, good], limit=5, lease=LEASE, token=uuid4())
                    bodies |= {each.body for each in claimed.deliveries}
                await asyncio.sleep(0.1)


async def test_while_one_node_refuses_the_leases_at_the_others_are_known_to_be_renewed(
    cluster: RedisCluster,
) -> None:
    async with open_store(cluster.url) as store:
        frozen, healthy, *_ = await asyncio.to_thread(cluster.masters)
        (bad,) = await asyncio.to_thread(queues_at, cluster, store, frozen, 1)
        (good,) = await asyncio.to_thread(queues_at, cluster, store, healthy, 1)
        for queue in (bad, good):
            await store.publish(Message(queue=queue, body=b"running"))
        claimed = await store.claim([bad, good], limit=2, lease=LEASE, token=uuid4())
        running = sorted(claimed.deliveries, key=lambda each: each.queue == good)
        # The server takes no script: it answers so at once.
        await asyncio.to_thread(frozen.ask, "CONFIG", "SET", "min-replicas-to-write", "5")
        try:
            assert await store.extend(running, LEASE) == [WriteResult.BUSY, WriteResult.WRITTEN]
            with pytest.raises(StoreUnavailable):
                await store.extend(running[:1], LEASE)
        finally:
            await asyncio.to_thread(frozen.ask, "CONFIG", "SET", "min-replicas-to-write", "0")
        assert await store.extend(running, LEASE) == [WriteResult.WRITTEN] * 2


# ------------------------------------------------------------------------------------- what is wrong


async def test_what_is_wrong_is_told_of_each_primary_by_its_address(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        found = await findings(store, Code.REDIS_REPLICAS)
        async with open_store(cluster.url, wait_replicas=1) as patient:
            waits = await findings(patient, Code.REDIS_REPLICAS)

    addresses = {f"127.0.0.1:{node.port}" for node in cluster.masters()}
    assert {each.what.rpartition(" ")[2] for each in found} == addresses
    assert waits == []
