"""The Postgres store keeps the contract when a claim sees next to nothing of what waits for ordering keys.

A claim considers a few hundred such messages and asks for the first of each key only when those are not enough. Here
it considers one and always asks, so that every test goes the long way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from nightmail.message import Delivery
from nightmail.outcome import Done
from nightmail.store import Settlement
from nightmail.stores.postgres import PostgresStore, claiming
from nightmail.testing.conformance import Harness
from nightmail.testing.conformance.backlogs import BacklogsConformance
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from nightmail.testing.conformance.claim import ClaimConformance
from nightmail.testing.conformance.fixtures import StoreFixtures
from nightmail.testing.conformance.ordering import OrderingConformance
from nightmail.testing.conformance.overlooked import OverlookedConformance
from nightmail.testing.conformance.priority import PriorityConformance
from testkit.servers import Postgres
from tests.stores.postgres.support import AsyncpgHarness, open_store

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def database(postgres_server: Postgres) -> Iterator[str]:
    """One for all tests here: each empties it."""
    postgres_server.revive()
    with postgres_server.fresh_database() as url:
        yield url


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "WINDOW", 1)
    monkeypatch.setattr(claiming, "WINDOW_PER_MESSAGE", 0)


@pytest.fixture
def _always_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming.Claims, "_cuts_short", lambda claims, wanted: True)


class InThisDatabase(StoreFixtures):
    @pytest_asyncio.fixture
    async def harness(self, database: str) -> Harness:  # type: ignore[override]
        harness = AsyncpgHarness(database)
        await harness.make_empty()
        return harness


@pytest.mark.usefixtures("_always_asking")
class TestWithANarrowWindow(
    InThisDatabase, OrderingConformance, PriorityConformance, OverlookedConformance, ClaimConformance
):
    """What is about claims."""


class TestLinesWithANarrowWindow(InThisDatabase, BacklogsConformance):
    """Long lines."""


async def drained(store: PostgresStore, *queues: str) -> tuple[list[Delivery], int]:
    """What is found until a claim says that this was all, and how many claims it took."""
    found: list[Delivery] = []
    for claims in range(1, 200):
        claimed = await store.claim(queues, limit=100, lease=LEASE, token=uuid4())
        found += claimed.deliveries
        if not claimed.full:
            return found, claims
    raise AssertionError("no claim ever says that it has found all")


async def test_asking_for_all_keys_ends_though_each_claim_asks_for_a_few(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "KEYS", 3)
    async with open_store(postgres_url) as store:
        for queue, keys in (("many", 40), ("few", 2)):
            await store.publish_batch(
                [
                    message(b"%d" % place, queue=queue, ordering_key=f"key {key}")
                    for place in range(3)
                    for key in range(keys)
                ]
            )
        for place in range(3):
            found, _ = await drained(store, "many", "few", "none")
            assert {delivery.body for delivery in found} == {b"%d" % place}
            assert len(found) == 42
            # All keys are held: asking for them ends as well.
            again, claims = await drained(store, "many", "few", "none")
            assert again == []
            assert claims > 1 or place == 2
            await store.settle([Settlement(delivery, Done()) for delivery in found])
        assert (await drained(store, "many", "few", "none"))[0] == []


async def test_workers_beside_one_another_keep_the_order_of_every_key(postgres_url: str) -> None:
    async with open_store(postgres_url) as one, open_store(postgres_url) as two:
        await one.publish_batch(
            [message(b"%d" % place, ordering_key=f"key {key}") for place in range(12) for key in range(9)]
        )
        seen: dict[str, list[int]] = {f"key {key}": [] for key in range(9)}
        running: set[str] = set()

        async def work(store: PostgresStore) -> None:
            while sum(map(len, seen.values())) < 9 * 12:
                claimed = await store.claim([QUEUE], limit=3, lease=LEASE, token=uuid4())
                keys = {str(delivery.ordering_key) for delivery in claimed.deliveries}
                assert len(keys) == len(claimed.deliveries)
                assert not keys & running
                running.update(keys)
                for delivery in claimed.deliveries:
                    seen[str(delivery.ordering_key)].append(int(delivery.body))
                await asyncio.sleep(0)
                running.difference_update(keys)
                await store.settle([Settlement(delivery, Done()) for delivery in claimed.deliveries])

        async with asyncio.timeout(120):
            await asyncio.gather(work(one), work(two))

        assert seen == {f"key {key}": list(range(12)) for key in range(9)}


async def test_the_answer_for_many_keys_serves_many_claims(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = claiming.Claims._ask

    def counted(claims: claiming.Claims, name: str, values: Mapping[str, Any]) -> Any:
        asked.append(name)
        return ask(claims, name, values)

    monkeypatch.setattr(claiming.Claims, "_ask", counted)
    monkeypatch.setattr(claiming, "FIRSTS_SECONDS", 3600)
    async with open_store(postgres_url) as store:
        await store.publish_batch([message(ordering_key="held") for _ in range(50)])
        (held,) = (await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries
        await store.publish_batch([message(b"%d" % key, ordering_key=f"key {key}") for key in range(300)])
        asked.clear()
        found: list[Delivery] = []
        while len(found) < 300:
            taken = (await store.claim([QUEUE], limit=10, lease=LEASE, token=uuid4())).deliveries
            found += taken
            await store.settle([Settlement(delivery, Done()) for delivery in taken])

    assert [int(delivery.body) for delivery in found] == [*range(300)]
    assert asked.count("firsts") == 1
    assert held.id not in {delivery.id for delivery in found}
