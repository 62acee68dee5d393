"""What Postgres reads of dead letters, of what was delivered and of dedup windows follows the batch as well.

As for messages: the plans that the server really ran, whatever it believes about the tables.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import cycle
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from nightmail.outcome import Dead, Done, Outcome, Release, Retry
from nightmail.records import DeadFilter, Swept
from nightmail.store import Claimed, Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE
from testkit.servers import Postgres
from tests.counters.baseline import within
from tests.plans.test_postgres_plans import Plans, nodes
from tests.stores.postgres.support import connection, make_tables, open_store

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

MANY = 20_000
BATCH = 50
TABLES = ("dead", "delivered", "dedup")

# Given up, due later, due: of each a third. The due ones are a day old.
FILL = f"""
    insert into nightmail_dead
        (message_id, died_at, published_at, due_at, attempts, deliveries, priority, queue, timer_id, reason,
         headers, body)
    select n, clock_timestamp() - interval '1 day' + n * interval '1 second', clock_timestamp(),
           case n % 3 when 0 then clock_timestamp() when 1 then clock_timestamp() + interval '1 day' end,
           1, 1, 0, case when n % 2 = 0 then '{QUEUE}' else 'other' end, 'timer ' || n, 'rejected', '{{}}', 'x'
    from generate_series(1, {MANY}) as n;
    insert into nightmail_delivered
        (message_id, published_at, due_at, delivered_at, attempts, deliveries, priority, queue, headers, body)
    select n, clock_timestamp(), clock_timestamp(), clock_timestamp() - interval '1 day' + n * interval '1 second',
           1, 1, 0, '{QUEUE}', '{{}}', 'x'
    from generate_series(1, {MANY}) as n;
    insert into nightmail_dedup (queue, timer_id, until)
    select '{QUEUE}', 'window ' || n, clock_timestamp() + (n - {MANY // 2}) * interval '1 second'
    from generate_series(1, {MANY}) as n;
    insert into nightmail_messages (queue, priority, due_at, published_at, headers, body, timer_id, timer_key)
    select '{QUEUE}', 0, clock_timestamp(), clock_timestamp(), '{{}}', 'x', 'message ' || n, 'message ' || n
    from generate_series(1, {MANY}) as n;
"""
ANALYZE = "analyze nightmail_dead, nightmail_delivered, nightmail_dedup, nightmail_messages;"
EMPTY = "".join(f"delete from nightmail_{table};" for table in (*TABLES, "messages"))

STATES = {
    "never analyzed": [FILL],
    "analyzed while empty": [ANALYZE, FILL],
    "analyzed after it was emptied": [FILL, EMPTY, "vacuum analyze", FILL],
    "analyzed": [FILL, ANALYZE],
}


def assert_frugal(plan: dict[str, Any], *, rows: int, pages: int) -> None:
    """Nothing of what grows is read from end to end or sorted, and no more is handled than there is reason for."""
    for node in nodes(plan):
        kind = node["Node Type"]
        within("joins of all rows", kind == "Bitmap Heap Scan", 0, node)
        within("full scans", kind == "Seq Scan" and node["Relation Name"] != "nightmail_meta", 0, node)
        within("rows sorted", node["Actual Rows"] if "Sort" in kind else 0, BATCH * 2, node)
        passed_over = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
        within("rows", (node["Actual Rows"] + passed_over) * node["Actual Loops"], rows, node)
    within("pages", plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], pages)


@asynccontextmanager
async def prepared(url: str) -> AsyncIterator[tuple[PostgresStore, Plans, Plans, Plans]]:
    """A store over these tables, with plans of what it claims, settles and does for an operator."""
    async with open_store(url) as store:
        assert store._opened is not None
        plans = [Plans(), Plans(), Plans()]
        for lane, told in zip(
            (store._opened.lanes.claim, store._opened.lanes.settle, store._opened.lanes.publish),
            plans,
            strict=True,
        ):
            await lane.run(told.listen)
        yield store, *plans  # type: ignore[misc]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(STATES))
async def filled(postgres_server: Postgres, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A database in one of these states."""
    postgres_server.revive()
    with postgres_server.fresh_database() as url:
        await make_tables(url)
        async with connection(url) as own:
            for table in (*TABLES, "messages"):
                await own.execute(f"alter table nightmail_{table} set (autovacuum_enabled = off)")
            for step in STATES[request.param]:
                await own.execute(step)
        yield url


@pytest.fixture
def database(postgres_server: Postgres, filled: str) -> Iterator[str]:
    """A copy of it, statistics and all: to fill each takes ten times as long."""
    url = postgres_server.copy_database(filled)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(autouse=True)
def _can_explain(postgres_server: Postgres) -> None:
    if not postgres_server.ours:
        pytest.skip("loading auto_explain needs a superuser")


async def test_what_is_read_of_letters_follows_the_batch(database: str) -> None:
    async with prepared(database) as (store, claims, settles, _):

        async def claim(*queues: str, limit: int = BATCH) -> tuple[Claimed, dict[str, Any]]:
            claimed = await store.claim_dead(queues or (QUEUE,), limit=limit, lease=LEASE, token=uuid4())
            return claimed, await claims.only("nightmail_dead")

        for queues in ([QUEUE], [QUEUE, "other"]):
            claimed, plan = await claim(*queues)
            assert len(claimed.deliveries) == BATCH
            assert_frugal(plan, rows=BATCH * 10, pages=BATCH * 40)
            # What is sorted after it was locked was locked before it was chosen.
            (picked,) = [node for node in nodes(plan) if node.get("Subplan Name") == "CTE picked"]
            sorts = [node for node in nodes(picked) if node["Node Type"] in ("Sort", "Incremental Sort")]
            within("sorts of what is locked", len(sorts), 0, picked)

        token = claimed.deliveries[0].token
        assert await store.recall_dead([QUEUE, "other"], token) == BATCH
        # Over what is due, as far as that goes: the token is in no index.
        assert_frugal(await claims.only("nightmail_dead"), rows=MANY, pages=MANY)
        claimed, _ = await claim(QUEUE, "other")

        outcomes: list[Outcome] = [Done(), Retry(HOUR), Dead("given up"), Release()]
        batch = [Settlement(*pair) for pair in zip(claimed.deliveries, cycle(outcomes), strict=False)]
        assert set(await store.settle(batch)) == {"written"}
        assert_frugal(await settles.only("nightmail_dead"), rows=BATCH * 4, pages=BATCH * 40)

        claimed, _ = await claim()
        assert set(await store.extend(claimed.deliveries, LEASE * 2)) == {"written"}
        assert_frugal(await settles.only("nightmail_dead"), rows=BATCH * 4, pages=BATCH * 40)

        claimed, plan = await claim("nothing")
        assert_frugal(plan, rows=50, pages=250)


async def test_what_is_read_for_a_redrive_follows_the_batch(database: str) -> None:
    async with prepared(database) as (store, _, _, asked):
        letters = await store.dead(DeadFilter(queue=QUEUE), limit=BATCH)
        await asked.only("nightmail_dead")

        assert len(await store.redrive(letters)) == BATCH
        assert_frugal(await asked.only("nightmail_dead"), rows=BATCH * BATCH, pages=BATCH * 40)


async def test_what_is_read_by_id_follows_the_number_of_ids(database: str) -> None:
    async with prepared(database) as (store, _, _, asked):
        (some,) = {(message.id, message.queue) for message in await store.peek(QUEUE, limit=1)}
        await asked.all("nightmail_messages")

        assert len(await store.find(range(some[0], some[0] + BATCH))) == BATCH
        assert_by_id(await asked.only("nightmail_messages"))

        last = (await store.dead(DeadFilter(), limit=1))[0].id
        await asked.only("nightmail_dead")
        which = DeadFilter(ids=tuple(range(last - BATCH + 1, last + 1)))
        assert (await store.summarize_dead(which)).count == BATCH
        assert_by_id(await asked.only("nightmail_dead"))


def assert_by_id(plan: dict[str, Any]) -> None:
    """The rows with these ids are read, by whatever kind of index scan, and no others."""
    for node in nodes(plan):
        within("full scans", node["Node Type"] == "Seq Scan", 0, node)
        within("rows", node["Actual Rows"] + node.get("Rows Removed by Filter", 0), BATCH, node)
    within("pages", plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], BATCH * 10)


async def test_what_is_read_to_delete_follows_the_batch(database: str) -> None:
    async with prepared(database) as (store, _, _, asked):
        # A fresh start looks through what is dead in the order of ids.
        assert await store.purge(DeadFilter(queue=QUEUE, older_than=HOUR), limit=BATCH) == BATCH
        assert_frugal(await asked.only("nightmail_dead"), rows=BATCH * 4, pages=BATCH * 40)

        assert await store.sweep(older_than=timedelta(hours=12), limit=BATCH) == Swept(BATCH, BATCH, BATCH)
        for plan in await asked.all("nightmail_d"):
            assert_frugal(plan, rows=BATCH * 4, pages=BATCH * 40)

        assert await store.sweep(older_than=timedelta(days=2), limit=1) == Swept(0, 0, 1)
        for plan in await asked.all("nightmail_d"):
            assert_frugal(plan, rows=50, pages=250)
