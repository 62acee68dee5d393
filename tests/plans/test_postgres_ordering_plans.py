"""What Postgres reads for a claim follows its limit and the number of queues, not the length of one key's line."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from nightmail.message import Delivery
from nightmail.outcome import Done
from nightmail.store import Claimed, Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from testkit.servers import Postgres
from tests.counters.baseline import within
from tests.plans.test_postgres_plans import Plans, nodes
from tests.stores.postgres.support import connection, open_store

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

MILLION = 1_000_000
BACKLOG = 100_000
QUEUES = 200
LIMIT = 10

KINDS = "select count(distinct to_jsonb(m) - 'id') from nightmail_messages as m"
COPY_THE_LAST = f"""
    insert into nightmail_messages (queue, priority, due_at, published_at, expires_at, ordering_key, headers, body)
    select queue, priority, due_at, published_at, expires_at, ordering_key, headers, body
    from (select * from nightmail_messages order by id desc limit 1) as last, generate_series(1, {MILLION})
"""
# What the server believes about the size of the table and its indexes.
BELIEFS = """
    select c.relname::text, c.relpages, c.reltuples, c.relallvisible
    from pg_class as c left join pg_index as i on i.indexrelid = c.oid
    where 'nightmail_messages'::regclass in (c.oid, i.indrelid)
"""
BELIEVE = """
    update pg_class set relpages = $2, reltuples = $3, relallvisible = $4
    where relname = $1 and relnamespace = current_schema::regnamespace
"""


@pytest.fixture(autouse=True)
def _can_explain(postgres_server: Postgres) -> None:
    if not postgres_server.ours:
        pytest.skip("loading auto_explain needs a superuser")


async def told(store: PostgresStore) -> Plans:
    """The plans of what this store claims from now on."""
    plans = Plans()
    assert store._opened is not None
    await store._opened.lanes.claim.run(plans.listen)
    return plans


def work(plan: dict[str, Any]) -> tuple[int, int]:
    """The most rows that any part of it handled, and the pages it touched."""
    rows = max(
        (
            node["Actual Rows"]
            + node.get("Rows Removed by Filter", 0)
            + node.get("Rows Removed by Join Filter", 0)
        )
        * node["Actual Loops"]
        for node in nodes(plan)
    )
    return rows, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def reads_little(url: str) -> None:
    """Claims of the line and of what is behind it."""
    async with open_store(url) as store:
        await store.publish_batch(
            [message(b"other", ordering_key=None if n % 2 else f"key {n}") for n in range(10)]
        )
        plans = await told(store)

        async def claim() -> Claimed:
            claimed = await store.claim([QUEUE], limit=LIMIT, lease=LEASE, token=uuid4())
            for plan in await plans.all("nightmail_messages"):
                rows, pages = work(plan)
                within("rows", rows, 500)
                within("pages", pages, 2_500)
            return claimed

        # The key is free, then held, then free again.
        seen: list[Delivery] = []
        for _ in range(3):
            claimed = await claim()
            seen += claimed.deliveries
        assert sorted(delivery.body for delivery in seen) == [b"hot", *[b"other"] * 10]
        assert not claimed.full

        for _ in range(5):
            await store.settle([Settlement(delivery, Done()) for delivery in seen])
            seen = list((await claim()).deliveries)
            assert [delivery.body for delivery in seen] == [b"hot"]
        await store.settle([Settlement(delivery, Done()) for delivery in seen])


async def test_a_claim_reads_as_little_with_a_million_messages_of_one_key_whatever_the_server_believes(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store, connection(postgres_url) as own:
        await own.execute("alter table nightmail_messages set (autovacuum_enabled = off)")
        never_analyzed = sorted(await own.fetch(BELIEFS))
        await own.execute("analyze nightmail_messages")
        analyzed_while_empty = sorted(await own.fetch(BELIEFS))
        assert never_analyzed != analyzed_while_empty
        await store.publish_batch([message(b"hot", ordering_key="hot") for _ in range(5)])
        # They differ in nothing but the id, so that copies are what publishing leaves.
        assert await own.fetchval(KINDS) == 1
        await own.execute(COPY_THE_LAST)

        for beliefs in (never_analyzed, analyzed_while_empty):
            await own.executemany(BELIEVE, beliefs)
            assert sorted(await own.fetch(BELIEFS)) == beliefs
            await reads_little(postgres_url)
        await own.execute("analyze nightmail_messages")
        await reads_little(postgres_url)


async def test_what_a_claim_reads_grows_with_the_number_of_queues_and_no_faster(postgres_url: str) -> None:
    queues = [f"queue {number}" for number in range(QUEUES)]
    async with open_store(postgres_url) as store:
        async with connection(postgres_url) as own:
            await own.execute(
                f"""
                insert into nightmail_messages (queue, priority, due_at, published_at, headers, body)
                select 'queue ' || n % {QUEUES}, n / {QUEUES} % 2, clock_timestamp(), clock_timestamp(), '{{}}', 'x'
                from generate_series(0, {QUEUES * 4 - 1}) as n
                """
            )
        plans = await told(store)

        # The first takes from a few of them, the second from all, the last finds nothing in any.
        for limit, most_rows in ((50, 2_000), (QUEUES * 4, QUEUES * 40), (50, QUEUES * 40)):
            claimed = await store.claim(queues, limit=limit, lease=LEASE, token=uuid4())
            rows, pages = work(await plans.only())
            within("rows", rows, most_rows)
            within("pages", pages, QUEUES * 400)

        assert not claimed.deliveries


async def test_a_recall_does_not_walk_along_the_backlog(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        async with connection(postgres_url) as own:
            await own.execute(
                f"""
                alter table nightmail_messages set (autovacuum_enabled = off);
                insert into nightmail_messages (queue, priority, due_at, published_at, headers, body)
                select '{QUEUE}', 0, clock_timestamp(), clock_timestamp(), '{{}}', 'x'
                from generate_series(1, {BACKLOG})
                """
            )
        token = uuid4()
        await store.claim([QUEUE], limit=50, lease=LEASE, token=token)
        plans = await told(store)

        assert await store.recall([QUEUE], token) == 50
        rows, _ = work(await plans.only())
        within("rows", rows, 25_000)

        assert await store.recall([QUEUE], uuid4()) == 0
        rows, _ = work(await plans.only())
        within("rows", rows, 25_000)
