"""What Postgres reads for a claim and a settlement follows the batch and not the backlog.

The plans are those that the server really ran, for the store's own statements on the store's own connections: the
server tells them itself (auto_explain). They must be good whatever the server believes about the table, and it
believes a lot: that the table is as it was before anything happened, empty, without leases, or all leased.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from nightmail.outcome import Dead, Done, Outcome, Release, Retry
from nightmail.store import Claimed, Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.stores.postgres.claiming import WINDOW
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE
from testkit.servers import Postgres
from tests.counters.baseline import within
from tests.stores.postgres.support import connection, open_store

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FUTURE = 100_000
DUE = 2_000
BATCH = 50

EXPLAIN = """
    load 'auto_explain';
    set auto_explain.log_min_duration = 0;
    set auto_explain.log_analyze = on;
    set auto_explain.log_buffers = on;
    set auto_explain.log_format = json;
    set client_min_messages = log;
"""

FILL = f"""
    insert into nightmail_messages
        (queue, priority, due_at, published_at, headers, body, ordering_key, timer_id, timer_key)
    select '{QUEUE}', n % 3, clock_timestamp() + interval '1 day' + n * interval '1 second', clock_timestamp(),
           '{{}}', 'x', case when n % 10 = 0 then 'key ' || n end, 'timer ' || n, 'timer ' || n
    from generate_series(1, {FUTURE}) as n;
    insert into nightmail_messages (queue, priority, due_at, published_at, headers, body, ordering_key)
    select '{QUEUE}', n % 3, clock_timestamp(), clock_timestamp(),
           '{{}}', 'x', case when n % 10 = 0 then 'due key ' || n end
    from generate_series(1, {DUE}) as n;
"""

LEASE_ALL = """
    update nightmail_messages set token = gen_random_uuid(), claimed_at = now(), lease_until = now() + interval '1 hour'
    where due_at < now();
"""
RELEASE_ALL = """
    update nightmail_messages set token = null, claimed_at = null, lease_until = null where token is not null;
"""

STATES = {
    "never analyzed": FILL,
    "analyzed while empty": f"analyze nightmail_messages; {FILL}",
    "analyzed after it was drained": f"{FILL} delete from nightmail_messages; analyze nightmail_messages; {FILL}",
    "analyzed while nothing was leased": f"{FILL} analyze nightmail_messages",
    "analyzed while all was leased": f"{FILL} {LEASE_ALL} analyze nightmail_messages; {RELEASE_ALL}",
}


class Plans:
    """The plans of the statements that ran on one connection."""

    def __init__(self) -> None:
        self._logged: list[str] = []

    async def listen(self, own: Any) -> None:
        # Later messages are plans; each comes as one line of log with the plan behind the word "plan:".
        await own.execute(EXPLAIN)
        own.driver.add_log_listener(lambda _, entry: self._logged.append(entry.message))

    async def only(self, table: str = "nightmail_messages") -> dict[str, Any]:
        """The plan of the one statement on this table since the last time."""
        (plan,) = await self.all(table)
        return plan

    async def all(self, table: str) -> list[dict[str, Any]]:
        """The plans of all of them."""
        await asyncio.sleep(0)
        logged, self._logged = self._logged, []
        told = [json.loads(entry.partition("plan:")[2]) for entry in logged if "plan:" in entry]
        return [dict(entry["Plan"]) for entry in told if table in entry["Query Text"]]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def assert_frugal(plan: dict[str, Any], *, rows: int, pages: int) -> None:
    """Nothing is read from end to end, and nowhere are more rows handled than there is reason for."""
    for node in nodes(plan):
        kind = node["Node Type"]
        within("joins of all rows", kind in ("Hash Join", "Merge Join", "Bitmap Heap Scan"), 0, node)
        within("full scans", kind == "Seq Scan" and node["Relation Name"] != "nightmail_meta", 0, node)
        if "Sort" in kind:
            # What is taken comes in the order of the index. Only the first of each ordering key, and the share of the
            # oldest, are merged before anything is locked.
            within("rows sorted", node["Actual Rows"], BATCH, node)
            locked = [below for below in nodes(node) if below["Node Type"] == "LockRows"]
            within("sorts of what is locked", len(locked), 0, node)
        passed_over = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
        within("rows", (node["Actual Rows"] + passed_over) * node["Actual Loops"], rows, node)
    within("pages", plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], pages)


@asynccontextmanager
async def prepared(url: str, state: str) -> AsyncIterator[tuple[PostgresStore, Plans, Plans]]:
    """A store over a table in this state, with plans of what it claims and of what it settles."""
    async with open_store(url) as store:
        async with connection(url) as own:
            await own.execute("alter table nightmail_messages set (autovacuum_enabled = off)")
            await own.execute(STATES[state])
        claims, settles = Plans(), Plans()
        assert store._opened is not None
        await store._opened.lanes.claim.run(claims.listen)
        await store._opened.lanes.settle.run(settles.listen)
        yield store, claims, settles


@pytest.fixture(params=list(STATES))
def state(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def _can_explain(postgres_server: Postgres) -> None:
    if not postgres_server.ours:
        pytest.skip("loading auto_explain needs a superuser")


async def test_what_is_read_follows_the_batch_and_not_the_backlog(postgres_url: str, state: str) -> None:
    async with prepared(postgres_url, state) as (store, claims, settles):

        async def claim(limit: int = BATCH, queue: str = QUEUE) -> tuple[Claimed, dict[str, Any]]:
            claimed = await store.claim([queue], limit=limit, lease=LEASE, token=uuid4())
            return claimed, await claims.only()

        async def settle(*outcomes: Outcome) -> dict[str, Any]:
            claimed, _ = await claim()
            batch = [Settlement(*pair) for pair in zip(claimed.deliveries, cycle(outcomes), strict=False)]
            assert set(await store.settle(batch)) == {"written"}
            return await settles.only()

        # The first looks from end to end, the others begin at a mark.
        for _ in range(4):
            claimed, plan = await claim()
            assert len(claimed.deliveries) == BATCH
            # Some of the pages are those of the 200 messages that might wait for their ordering key.
            assert_frugal(plan, rows=BATCH * 10, pages=BATCH * 60)

        assert_frugal(await settle(Done()), rows=BATCH * 4, pages=BATCH * 40)
        assert_frugal(
            await settle(Done(), Retry(HOUR), Dead("rejected"), Release()), rows=BATCH * 4, pages=BATCH * 60
        )

        claimed, _ = await claim()
        assert set(await store.extend(claimed.deliveries, LEASE * 2)) == {"written"}
        assert_frugal(await settles.only(), rows=BATCH * 4, pages=BATCH * 40)

        # One that comes back short walks over what is leased, and over nothing that is due later.
        await claim(limit=DUE)
        claimed, plan = await claim()
        assert not claimed.deliveries
        assert claimed.next_in is not None
        assert_frugal(plan, rows=DUE * 2, pages=DUE * 10)

        claimed, plan = await claim(queue="nothing")
        assert_frugal(plan, rows=50, pages=250)

        # The look that idle workers share reads no more than a window of what is leased or waits in line.
        assert set(await store.look_ahead([QUEUE, "nothing"])) == {QUEUE}
        assert_frugal(await claims.only(), rows=WINDOW * 10, pages=WINDOW * 30)


async def test_a_claim_updates_its_rows_in_place_and_touches_no_index(postgres_url: str) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute(
            f"""
            insert into nightmail_messages (queue, priority, due_at, published_at, headers, body)
            select '{QUEUE}', 0, clock_timestamp(), clock_timestamp(), '{{}}', repeat('x', 200)::bytea
            from generate_series(1, 2000)
            """
        )
        for _ in range(4):
            await store.claim([QUEUE], limit=500, lease=LEASE, token=uuid4())
        assert store._opened is not None
        # Without this (Postgres 15) the server's counters come ten seconds later.
        with suppress(asyncpg.UndefinedFunctionError):
            await store._opened.lanes.claim.run(lambda c: c.execute("select pg_stat_force_next_flush()"))

        updated = in_place = 0
        async with asyncio.timeout(20):
            while updated < 2000:
                updated, in_place = await own.fetchrow(
                    "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'nightmail_messages'"
                )
                await asyncio.sleep(0.05)

        within("rows updated out of place", updated - in_place, updated * 0.15)
