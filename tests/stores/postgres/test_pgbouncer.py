"""Postgres through PgBouncer in transaction mode: nothing of ours stays on the connections that others use, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from nightmail.outcome import Done, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Blocking, Extend, FullStore, Settlement
from nightmail.testing.conformance import Harness, StoreConformance
from nightmail.testing.conformance.blocking import BlockingConformance
from nightmail.testing.conformance.build import LEASE, QUEUE, listens, message
from nightmail.testing.conformance.cancellation import CancellationConformance
from nightmail.testing.conformance.claim import ClaimConformance
from nightmail.testing.conformance.committed import CommittedConformance
from nightmail.testing.conformance.fixtures import StoreFixtures
from nightmail.testing.conformance.keeper import KeeperConformance
from nightmail.testing.conformance.publish import PublishConformance
from nightmail.testing.conformance.schema import SchemaConformance
from nightmail.testing.conformance.settle_batch import SettleBatchConformance
from nightmail.testing.conformance.transaction import TransactionConformance
from testkit.pytest_plugin import provide
from testkit.servers import Postgres
from testkit.servers.pgbouncer import PgBouncer
from tests.stores.postgres.support import AsyncpgHarness, connection, open_store
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def pgbouncer(postgres_server: Postgres) -> Iterator[PgBouncer]:
    postgres_server.revive()
    with provide(PgBouncer(postgres_server.url)) as server:
        yield server


@pytest.fixture(scope="module")
def database(postgres_server: Postgres) -> Iterator[str]:
    with postgres_server.fresh_database() as url:
        yield url


@pytest.fixture
def pooled_url(pgbouncer: PgBouncer, postgres_url: str) -> str:
    """An empty database, through the pooler."""
    return pgbouncer.through(postgres_url)


class PooledHarness(AsyncpgHarness):
    """Everything goes through the pooler: the store, callers and witnesses, whose drivers prepare nothing by name."""

    wakeups = False

    def connection(self, url: str) -> AbstractAsyncContextManager[Any]:
        return connection(url, statement_cache_size=0)

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with psycopg.connect(self.url, prepare_threshold=None) as own:
            yield Blocking(own)


class Pooled(StoreFixtures):
    """A store behind the pooler."""

    @pytest_asyncio.fixture
    async def harness(self, database: str, pgbouncer: PgBouncer) -> Harness:  # type: ignore[override]
        harness = PooledHarness(pgbouncer.through(database))
        await harness.make_empty()
        return harness


class TestPgBouncerInShort(
    Pooled,
    PublishConformance,
    ClaimConformance,
    KeeperConformance,
    SettleBatchConformance,
    CommittedConformance,
    TransactionConformance,
    BlockingConformance,
    CancellationConformance,
    SchemaConformance,
):
    """What a pooler changes: settings and prepared statements of a session, transactions, connections that are lost."""


@pytest.mark.compat
class TestPgBouncer(Pooled, StoreConformance):
    """The whole suite, but for what rings: no wake-ups arrive here."""


class TestListenerBesidePgBouncer(StoreConformance):
    """The rest of the suite: what is written through the pooler rings a store that is not behind it."""

    @pytest_asyncio.fixture
    async def harness(self, database: str) -> Harness:  # type: ignore[override]
        harness = AsyncpgHarness(database)
        await harness.make_empty()
        return harness

    @pytest_asyncio.fixture
    async def other(  # type: ignore[override]
        self, harness: Harness, store: FullStore, database: str, pgbouncer: PgBouncer
    ) -> AsyncIterator[FullStore]:
        pooled = PooledHarness(pgbouncer.through(database))
        pooled.clock = harness.clock
        other = await pooled.open()
        try:
            yield other
        finally:
            await other.close()


for _name in dir(StoreConformance):
    if _name.startswith("test_") and not listens(getattr(StoreConformance, _name)):
        setattr(TestListenerBesidePgBouncer, _name, None)


# ------------------------------------------------------------------------------------ what others see


async def everything(url: str) -> None:
    """Every kind of statement, on every kind of connection."""
    async with open_store(url) as store:
        await store.check()
        await store.publish_batch([message(b"%d" % number) for number in range(10)])
        await store.publish(message(timer_id="t", dedup_for=timedelta(hours=1)))
        await store.publish(message(timer_id="t", on_conflict="replace"))
        deliveries = await claim(store)
        renewed = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def keep(extend: Extend) -> None:
            assert set(await extend(deliveries, LEASE)) == {WriteResult.WRITTEN}
            loop.call_soon_threadsafe(renewed.set)

        async with store.run_on_keeper_thread(keep):
            await renewed.wait()
        with store.listen([QUEUE]):
            await until(lambda: store.look_interval == timedelta(seconds=1))
        await store.settle([Settlement(delivery, Done()) for delivery in deliveries])
        await store.stats()
        await store.peek()
        await store.dead(DeadFilter())
        await store.purge(DeadFilter(), limit=1)
        await store.cancel_all(QUEUE)


async def test_nothing_stays_on_the_connections_of_the_pool(
    pgbouncer: PgBouncer, postgres_url: str, pooled_url: str
) -> None:
    names = (
        *(
            "application_name",
            "statement_timeout",
            "lock_timeout",
            "default_transaction_isolation",
            "search_path",
        ),
        *(
            "enable_seqscan",
            "enable_bitmapscan",
            "max_parallel_workers_per_gather",
            "jit",
            "jit_above_cost",
            "plan_cache_mode",
        ),
    )
    current = ", ".join(f"current_setting('{name}') as {name}" for name in names)
    async with connection(postgres_url) as own:
        fresh = dict(await own.fetchrow(f"select {current}"))

    await everything(pooled_url)

    # As many clients at once as the pool has connections: each sees another one.
    clients = [await asyncpg.connect(pooled_url, statement_cache_size=0) for _ in range(4)]
    try:
        pids = set()
        for client in clients:
            await client.execute("begin")
            pids.add(await client.fetchval("select pg_backend_pid()"))
            assert dict((await client.fetch(f"select {current}"))[0]) == fresh
            assert await client.fetch("select pg_listening_channels()") == []
            # The driver of this client asks without a name, and so do we.
            assert await client.fetchval("select count(*) from pg_prepared_statements where name <> ''") == 0
            assert await client.fetchval("select count(*) from pg_locks where locktype = 'advisory'") == 0
        assert len(pids) == 4
    finally:
        for client in clients:
            await client.close()


async def test_it_says_once_that_there_are_no_wake_ups_and_looks_every_second(
    pooled_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="nightmail"):
        async with open_store(pooled_url) as store:
            with store.listen([QUEUE]), store.listen(["others"]):
                await until(lambda: bool(caplog.records))
                assert not store.listening
                assert store.look_interval == timedelta(seconds=1)
                await store.publish(message())
                await done(store, await claim(store))

    (record,) = caplog.records
    assert "pooler" in record.getMessage()
    assert "looking every second" in record.getMessage()


async def test_a_publisher_behind_the_pooler_wakes_a_worker_that_is_not(
    postgres_url: str, pooled_url: str
) -> None:
    async with open_store(postgres_url) as worker, open_store(pooled_url) as publisher:
        with worker.listen([QUEUE]) as bell:
            await until(lambda: worker.listening)
            bell.clear()

            await publisher.publish(message())

            assert await bell.wait(10)


async def test_many_clients_share_few_connections(pooled_url: str) -> None:
    async with (
        open_store(pooled_url) as first,
        open_store(pooled_url) as second,
        open_store(pooled_url) as third,
    ):
        stores = (first, second, third)

        async def work(store: Any, number: int) -> int:
            await asyncio.gather(*(store.publish(message(b"%d" % n)) for n in range(20)))
            taken = 0
            while deliveries := await claim(store, limit=7):
                taken += len(deliveries)
                assert set(await done(store, deliveries)) == {WriteResult.WRITTEN}
            return taken

        taken = await asyncio.gather(*(work(store, number) for number, store in enumerate(stores)))

        assert sum(taken) + len(await first.peek()) == 60
