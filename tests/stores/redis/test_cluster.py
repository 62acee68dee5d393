"""The Redis store on a cluster: slots move, masters die, and what Redis has promised is kept.

What Redis does not promise: a master acknowledges before its replica has heard. What was written in the moment before
it died may therefore be undone by the failover. A message published then is lost, one that was claimed or
settled then is delivered again. Nothing else is lost, and nothing else comes twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

import pytest

from nightmail.engine.settings import WorkerSettings
from nightmail.engine.worker import Worker
from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.message import Delivery, Message
from nightmail.outcome import Done, WriteResult
from nightmail.records import QueueStats
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance import Harness, StoreConformance
from nightmail.testing.conformance.build import SECOND, bury, claim_letters, message
from testkit.cluster_fixtures import Ledger, LedgerObserver
from testkit.servers.redis_cluster import RedisCluster, RedisNode
from testkit.waiting import wait_until
from tests.stores.redis.support import RedisHarness, open_store

pytestmark = [pytest.mark.redis, pytest.mark.slow]
pytest_plugins = ["testkit.cluster_fixtures"]

QUEUE: Final = "orders"
MESSAGES: Final = 600
WORKERS: Final = 3
HANDLERS: Final = 8
LEASE: Final = timedelta(seconds=5)
PATIENCE: Final = 45.0
REPLICATION: Final = timedelta(seconds=1)
"""Longer than any write takes to reach a replica that is alive and connected."""


@asynccontextmanager
async def at_work(cluster: RedisCluster, ledger: Ledger) -> AsyncIterator[list[LedgerObserver]]:
    """Workers, each with a store of its own as if in a process of its own; stopped at the end."""

    async def handle(delivery: Delivery) -> None:
        # A few outlast their first lease, so that leases are renewed while the cluster changes.
        await asyncio.sleep(7 if delivery.body.endswith(b"00") else 0.05)
        ledger.ran(delivery)

    async with AsyncExitStack() as stack:
        observers = [ledger.observer() for _ in range(WORKERS)]
        workers = [
            Worker(
                ledger.watched(await stack.enter_async_context(open_store(cluster.url))),
                handle,
                queues=[QUEUE],
                settings=WorkerSettings(lease=LEASE, max_workers=HANDLERS),
                observer=observer,
            )
            for observer in observers
        ]
        async with asyncio.TaskGroup() as running:
            tasks = [running.create_task(worker.run()) for worker in workers]
            try:
                yield observers
                await asyncio.gather(*(worker.stop() for worker in workers))
            finally:
                for task in tasks:
                    task.cancel()


async def published(store: FullStore, count: int = MESSAGES) -> list[bytes]:
    """The bodies of so many new messages."""
    bodies = [b"%04d" % number for number in range(count)]
    for first in range(0, count, 100):
        await store.publish_batch([Message(queue=QUEUE, body=body) for body in bodies[first : first + 100]])
    return bodies


def slot_of_queue(cluster: RedisCluster) -> int:
    """The one slot in which all keys of the queue are."""
    keys = [key for node in cluster.masters() for key in node.ask("KEYS", f"*{QUEUE}*")]
    [slot] = {cluster.slot_of(key) for key in keys}
    return slot


async def busy_slot(cluster: RedisCluster) -> int:
    return await asyncio.to_thread(slot_of_queue, cluster)


async def left(store: FullStore) -> QueueStats:
    """What is still there of the queue."""
    return (await store.stats()).get(QUEUE, QueueStats())


async def until_nothing_is_left(store: FullStore) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(StoreUnavailable):
                if await left(store) == QueueStats():
                    return
            await asyncio.sleep(0.1)


class TestRedisCluster(StoreConformance):
    """The contract, each queue wherever its slot is."""

    @pytest.fixture
    def harness(self, redis_cluster: RedisCluster) -> Harness:
        redis_cluster.flush()
        return RedisHarness(redis_cluster.url)

    async def test_letters_of_several_queues_are_taken_in_one_order(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        """In a cluster the longest due of one slot come first."""
        for body, queue in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", "b")):
            await bury(store, message(body, queue=queue))
            clock.advance(SECOND)

        taken = [letter.body for letter in await claim_letters(store, "b", "a", "b", limit=2)]
        assert taken in ([b"1", b"3"], [b"2", b"4"])


# Slots that move


async def test_a_busy_queue_moves_from_master_to_master_and_nothing_is_lost_or_handled_twice(
    cluster: RedisCluster,
) -> None:
    ledger = Ledger(LEASE)
    async with open_store(cluster.url) as store:
        bodies = await published(store)
        slot = await busy_slot(cluster)
        async with at_work(cluster, ledger):
            for handled in range(50, MESSAGES, 100):
                await handled_at_least(ledger, handled)
                await asyncio.to_thread(move_to_next_master, cluster, slot)
            await ledger.until(lambda: ledger.done.total() == len(bodies), within=PATIENCE)

        assert set(ledger.runs) == set(bodies)
        assert ledger.overlaps() == []
        assert ledger.ran_again() <= ledger.unsettled()
        assert set(ledger.done.values()) == {1}
        assert await left(store) == QueueStats()


async def handled_at_least(ledger: Ledger, count: int) -> None:
    await ledger.until(lambda: len(ledger.runs) >= count, within=PATIENCE)


def move_to_next_master(cluster: RedisCluster, slot: int) -> None:
    masters = cluster.masters()
    owner = cluster.master_of(slot)
    cluster.move_slot(slot, masters[(masters.index(owner) + 1) % len(masters)])


async def test_what_is_published_while_its_slot_moves_is_there_afterwards(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        await published(store, 300)
        slot = await busy_slot(cluster)
        moving = asyncio.create_task(asyncio.to_thread(move_often, cluster, slot))
        number = 300
        while not moving.done():
            try:
                await store.publish(Message(queue=QUEUE, body=b"%04d" % number))
            except StoreUnavailable as error:
                # Nothing was written, and that is certain: the same one again.
                assert not isinstance(error, PublishUncertain)  # noqa: PT017
                continue
            number += 1
        await moving

        claimed = await store.claim([QUEUE], limit=number + 1, lease=LEASE, token=uuid4())

        assert number > 300
        assert sorted(each.body for each in claimed.deliveries) == [b"%04d" % n for n in range(number)]


def move_often(cluster: RedisCluster, slot: int) -> None:
    for _ in range(6):
        move_to_next_master(cluster, slot)


# Masters that go


async def test_a_clean_failover_loses_no_message_and_no_lease(cluster: RedisCluster) -> None:
    async with open_store(cluster.url) as store:
        await store.publish_batch([Message(queue=QUEUE, body=body) for body in (b"held", b"waiting")])
        [held] = (await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries

        await asyncio.to_thread(cluster.failover, await busy_slot(cluster))

        assert await settled(store, held) is WriteResult.WRITTEN
        [other] = (await store.claim([QUEUE], limit=2, lease=LEASE, token=uuid4())).deliveries
        assert other.body == b"waiting"
        assert await settled(store, other) is WriteResult.WRITTEN


async def test_a_lease_lost_in_a_failover_is_fenced_and_its_message_is_delivered_again(
    cluster: RedisCluster,
) -> None:
    async with open_store(cluster.url) as store:
        await store.publish(Message(queue=QUEUE, body=b"survives"))
        slot = await busy_slot(cluster)
        master, replica = await asyncio.to_thread(pair, cluster, slot)
        with cluster.cut_off(replica):
            # The replica hears of neither.
            [stale] = (await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries
            await store.publish(Message(queue=QUEUE, body=b"does not"))
            await asyncio.to_thread(cluster.kill, master)
        await asyncio.to_thread(lambda: cluster.wait_for_heir(slot, of=master))

        assert await settled(store, stale) is WriteResult.LOST
        [fresh] = (await store.claim([QUEUE], limit=2, lease=LEASE, token=uuid4())).deliveries
        assert fresh.body == b"survives"
        assert fresh.token != stale.token
        assert await settled(store, stale) is WriteResult.LOST
        assert await settled(store, fresh) is WriteResult.WRITTEN
        assert await left(store) == QueueStats()


def pair(cluster: RedisCluster, slot: int) -> tuple[RedisNode, RedisNode]:
    """Who has this slot, once its replica has all of it."""
    master = cluster.master_of(slot)
    replica = cluster.replica_of(master)
    # Not WAIT: that asks about the writes of its own connection, and this one has made none.
    written = int(master.ask("INFO", "replication")["master_repl_offset"])
    wait_until(
        lambda: int(replica.ask("INFO", "replication")["slave_repl_offset"]) >= written,
        within=PATIENCE,
        what="the replica to have everything",
    )
    return master, replica


async def settled(store: FullStore, delivery: Delivery) -> WriteResult:
    """How a lease stands when its message is reported done, however often that must be tried."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                [result] = await store.settle([Settlement(delivery, Done())])
                return result
            except StoreUnavailable:
                await asyncio.sleep(0.05)


async def test_a_master_killed_at_work_loses_nothing_and_only_what_it_did_last_comes_twice(
    cluster: RedisCluster,
) -> None:
    ledger = Ledger(LEASE)
    async with open_store(cluster.url) as store:
        bodies = await published(store)
        slot = await busy_slot(cluster)
        master, _ = await asyncio.to_thread(pair, cluster, slot)
        async with at_work(cluster, ledger) as observers:
            await handled_at_least(ledger, MESSAGES // 3)
            assert [observer.outages for observer in observers] == [[]] * WORKERS

            before = datetime.now(UTC) - REPLICATION
            await asyncio.to_thread(cluster.kill, master)
            after = datetime.now(UTC) + REPLICATION

            await ledger.until(lambda: set(ledger.runs) == set(bodies), within=PATIENCE)
            await until_nothing_is_left(store)

        # A claim, a renewal or a settlement of the last moment may be undone; then the message comes again.
        undone = ledger.unsettled() | ledger.touched(before, after)
        assert ledger.ran_again() <= undone
        assert {first.body for first, _ in ledger.overlaps()} <= undone
        # In hand at the worst: what each worker runs, and a few times as much fetched ahead or not yet written.
        assert len(ledger.ran_again()) <= WORKERS * HANDLERS * 4
