"""Probes in a cluster: a claim spans slots, and a probe comes alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from uuid import uuid4

import pytest
import pytest_asyncio

from nightmail.errors import StoreUnavailable
from nightmail.message import Message
from nightmail.store import Claimed
from nightmail.stores.redis import RedisStore
from nightmail.stores.redis.cluster.claiming import ClusterClaiming
from nightmail.stores.redis.requests import Call
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import LEASE, MINUTE, bodies
from testkit.servers.redis_cluster import RedisCluster
from tests.stores.redis.support import open_store

pytestmark = [pytest.mark.redis, pytest.mark.slow]
pytest_plugins = ["testkit.cluster_fixtures"]

BUSY, PAUSED = "busy", "paused"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def store(cluster: RedisCluster, clock: ManualClock) -> AsyncIterator[RedisStore]:
    """One with messages in two slots, of which one is due to be probed."""
    async with open_store(cluster.url, clock=clock) as store:
        for queue in (BUSY, PAUSED):
            await store.publish_batch([Message(queue=queue, body=queue.encode()) for _ in range(2)])
        await store.pause(PAUSED, by="breaker", until=MINUTE, automatic=True)
        clock.advance(MINUTE)
        yield store


async def look(store: RedisStore) -> Claimed:
    """Queues are served in rotation: a store that has not claimed before begins with the first."""
    return await store.claim([BUSY, PAUSED], limit=10, lease=LEASE, token=uuid4())


async def test_what_was_claimed_of_another_slot_before_a_probe_is_handed_back_at_no_cost(
    store: RedisStore,
) -> None:
    probe = await look(store)
    rest = await look(store)

    assert (bodies(probe.deliveries), probe.probe, probe.full) == ([b"paused"], True, True)
    assert (bodies(rest.deliveries), rest.probe) == ([b"busy"] * 2, False)
    assert [delivery.deliveries for delivery in rest.deliveries] == [1, 1]


async def test_a_probe_that_another_process_took_meanwhile_leaves_a_claim_without_one(
    store: RedisStore, cluster: RedisCluster, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_back = ClusterClaiming._give_back
    async with open_store(cluster.url, clock=clock) as other:

        async def too_late(*arguments: object) -> None:
            monkeypatch.setattr(ClusterClaiming, "_give_back", give_back)
            await give_back(*arguments)  # type: ignore[arg-type]  # they are what was given
            taken = await other.claim([PAUSED], limit=1, lease=LEASE, token=uuid4())
            assert taken.probe

        monkeypatch.setattr(ClusterClaiming, "_give_back", too_late)
        nothing = await look(store)
        rest = await look(store)

    assert (list(nothing.deliveries), nothing.probe, nothing.full) == ([], False, True)
    assert bodies(rest.deliveries) == [b"busy"] * 2


async def test_what_could_not_be_handed_back_is_before_the_next_claim(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall, failures = ClusterClaiming.recall, count()

    async def refused(claiming: ClusterClaiming, *arguments: object) -> int:
        if next(failures) == 0:
            raise StoreUnavailable("no answer")
        return await recall(claiming, *arguments)  # type: ignore[arg-type]  # they are what was given

    monkeypatch.setattr(ClusterClaiming, "recall", refused)
    probe = await look(store)
    rest = await look(store)

    assert probe.probe
    assert bodies(rest.deliveries) == [b"busy"] * 2
    assert [delivery.deliveries for delivery in rest.deliveries] == [1, 1]


async def test_claims_that_need_no_probe_ask_each_slot_once(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.resume(PAUSED, automatic=True)
    asked: list[str] = []
    ask = ClusterClaiming._ask

    async def noted(claiming: ClusterClaiming, call: Call) -> object:
        asked.append(call.script.name)
        return await ask(claiming, call)

    monkeypatch.setattr(ClusterClaiming, "_ask", noted)
    claimed = await look(store)

    assert sorted(bodies(claimed.deliveries)) == [b"busy"] * 2 + [b"paused"] * 2
    assert asked == ["claim", "claim"]
