"""The clusters as fixtures, and a ledger of what workers on them did.

A test file that wants one says `pytest_plugins = ["testkit.cluster_fixtures"]`. Not among the other fixtures: a
cluster takes seconds to start, so only tests that ask for it pay for it. As with single servers, an unavailable
cluster skips the test on a laptop and fails it on CI.

PYTEST_DONT_REWRITE: nothing is asserted here, and a test file may import this before pytest loads it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import Any, cast
from uuid import UUID

import pytest

from nightmail.message import Delivery
from nightmail.observe import Observer
from nightmail.outcome import Done, Release, WriteResult
from nightmail.store import Extend, FullStore, Lingers, Settlement
from testkit.pytest_plugin import provide
from testkit.servers.galera import Galera
from testkit.servers.redis_cluster import RedisCluster

_NEVER = datetime.max.replace(tzinfo=UTC)


@pytest.fixture(scope="session")
def galera() -> Iterator[Galera]:
    """Three MariaDB nodes for the whole session. A test that may find them damaged by an earlier one revives them."""
    with provide(Galera.from_environment()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Six Redis nodes for the whole session. A test that may find them damaged by an earlier one revives them."""
    with provide(RedisCluster.from_environment()) as cluster:
        yield cluster


@pytest.fixture
def cluster(redis_cluster: RedisCluster) -> Iterator[RedisCluster]:
    """The same, empty and complete."""
    redis_cluster.revive()
    redis_cluster.flush()
    yield redis_cluster
    redis_cluster.revive()


class Ledger:
    """What several workers did with the messages of one queue.

    Times are the store's; on one machine all clocks are the same. Give each worker `watched(store)` as its store and
    `observer()` as its observer, and call `ran` in the handler.
    """

    def __init__(self, lease: timedelta) -> None:
        self._lease = lease
        self._news = asyncio.Event()
        self._until: dict[tuple[int, UUID], datetime] = {}
        self._done_at: dict[int, datetime] = {}
        self.claims: defaultdict[int, list[Delivery]] = defaultdict(list)
        self.runs: Counter[bytes] = Counter()
        self.done: Counter[int] = Counter()
        """How often the store accepted that a message is done."""
        self.released: set[tuple[int, UUID]] = set()
        self.lost: set[tuple[int, UUID]] = set()
        self.uncertain: set[tuple[int, UUID]] = set()

    def ran(self, delivery: Delivery) -> None:
        """The handler of this delivery has finished."""
        self.runs[delivery.body] += 1
        self._news.set()

    async def until(self, happened: Callable[[], bool], *, within: float) -> None:
        """Wait until that holds; checked whenever a worker has done something."""
        async with asyncio.timeout(within):
            while not happened():
                self._news.clear()
                await self._news.wait()

    def overlaps(self) -> list[tuple[Delivery, Delivery]]:
        """Pairs of deliveries of one message where the second was claimed while the first still had its lease."""
        return [
            (first, second)
            for deliveries in self.claims.values()
            for first, second in pairwise(sorted(deliveries, key=lambda each: each.claimed_at))
            if _lease(first) not in self.released and second.claimed_at < self._until[_lease(first)]
        ]

    def ran_again(self) -> set[bytes]:
        """The bodies of the messages whose handler finished more than once."""
        return {body for body, count in self.runs.items() if count > 1}

    def unsettled(self) -> set[bytes]:
        """The bodies of all deliveries whose worker was told that its lease is lost, or that the result is unknown."""
        return {each.body for each in self._deliveries() if _lease(each) in self.lost | self.uncertain}

    def touched(self, since: datetime, until: datetime) -> set[bytes]:
        """The bodies of all messages that were claimed, or accepted as done, between these times."""
        return {
            each.body
            for each in self._deliveries()
            if since <= each.claimed_at <= until or since <= self._done_at.get(each.id, _NEVER) <= until
        }

    def _deliveries(self) -> Iterator[Delivery]:
        return chain.from_iterable(self.claims.values())

    def observer(self) -> LedgerObserver:
        """Records what one worker observes."""
        return LedgerObserver(self)

    def watched(self, store: FullStore) -> FullStore:
        """This store, with every lease renewal recorded."""
        return cast(FullStore, _Watched(store, self))

    def note_claimed(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self.claims[delivery.id].append(delivery)
            # The keeper may have renewed it before we were told of it.
            self._renew(delivery, delivery.claimed_at + self._lease)

    def note_settled(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            if isinstance(settlement.outcome, Done):
                self.done[settlement.delivery.id] += 1
                self._done_at[settlement.delivery.id] = datetime.now(UTC)
            elif isinstance(settlement.outcome, Release):
                self.released.add(_lease(settlement.delivery))
        self._news.set()

    def note_extended(
        self, deliveries: Sequence[Delivery], results: Sequence[WriteResult], sent: datetime
    ) -> None:
        for delivery, result in zip(deliveries, results, strict=True):
            if result is WriteResult.WRITTEN:
                self._renew(delivery, sent + self._lease)

    def _renew(self, delivery: Delivery, until: datetime) -> None:
        self._until[_lease(delivery)] = max(self._until.get(_lease(delivery), until), until)


class LedgerObserver(Observer):
    """One worker's part of a ledger, and the outages it met."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.claims: list[Delivery] = []
        self.outages: list[Exception] = []

    def claimed(self, deliveries: Sequence[Delivery]) -> None:
        self.claims += deliveries
        self._ledger.note_claimed(deliveries)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        self._ledger.note_settled(settlements)

    def lease_lost(self, delivery: Delivery) -> None:
        self._ledger.lost.add(_lease(delivery))

    def uncertain(self, settlement: Settlement) -> None:
        self._ledger.uncertain.add(_lease(settlement.delivery))

    def store_unavailable(self, error: Exception, retry_in: timedelta) -> None:
        self.outages.append(error)


class _Watched:
    def __init__(self, store: FullStore, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AbstractAsyncContextManager[None]:
        async def watched(extend: Extend) -> None:
            async def noted(deliveries: Sequence[Delivery], lease: timedelta) -> Sequence[WriteResult]:
                sent = datetime.now(UTC)
                results = await extend(deliveries, lease)
                self._ledger.note_extended(deliveries, results, sent)
                return results

            await work(noted)

        return self._store.run_on_keeper_thread(watched, lingers=lingers)


def _lease(delivery: Delivery) -> tuple[int, UUID]:
    return delivery.id, delivery.token
