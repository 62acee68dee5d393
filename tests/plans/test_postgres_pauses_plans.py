"""What Postgres reads for a claim beside pauses follows its limit and the number of paused keys, not what waits."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from nightmail.message import Delivery
from nightmail.outcome import Retry
from nightmail.store import Claimed, Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import AT_ONCE, LEASE, QUEUE, message
from testkit.servers import Postgres
from tests.counters.baseline import within
from tests.plans.test_postgres_ordering_plans import told, work
from tests.plans.test_postgres_plans import Plans
from tests.stores.postgres.support import connection, open_store

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

BACKLOG = 100_000
KEYS = 200
LIMIT = 10
OTHER = "other"

PAUSE_KEYS = f"""
    insert into nightmail_controls (queue, ordering_key, since, paused_by)
    select '{QUEUE}', 'key ' || n, clock_timestamp(), 'ann' from generate_series(0, {KEYS - 1}) as n
"""
STATES = {"never analyzed": "", "analyzed": "analyze nightmail_messages, nightmail_controls"}


def backlog(key: str) -> str:
    """Fills the queue with messages of these ordering keys, an expression over `n`."""
    return f"""
        insert into nightmail_messages (queue, priority, due_at, published_at, headers, body, ordering_key)
        select '{QUEUE}', n % 3, clock_timestamp(), clock_timestamp(), '{{}}', 'held back', {key}
        from generate_series(1, {BACKLOG}) as n
    """


@pytest.fixture(params=list(STATES))
def state(request: pytest.FixtureRequest) -> str:
    return STATES[request.param]


@pytest.fixture(autouse=True)
def _can_explain(postgres_server: Postgres) -> None:
    if not postgres_server.ours:
        pytest.skip("loading auto_explain needs a superuser")


async def claim(store: PostgresStore, plans: Plans, *queues: str, rows: int, pages: int) -> Claimed:
    """Claim, and hold every statement of it to this many rows and pages."""
    claimed = await store.claim(queues, limit=LIMIT, lease=LEASE, token=uuid4())
    ran = await plans.all("nightmail_messages")
    assert ran
    for plan in ran:
        handled, touched = work(plan)
        within("rows", handled, rows)
        within("pages", touched, pages)
    return claimed


async def run(url: str, *statements: str) -> None:
    async with connection(url) as own:
        await own.execute("alter table nightmail_messages set (autovacuum_enabled = off)")
        for statement in filter(None, statements):
            await own.execute(statement)


async def test_nothing_is_read_of_a_paused_queue(postgres_url: str, state: str) -> None:
    async with open_store(postgres_url) as store:
        await run(postgres_url, backlog("case when n % 2 = 0 then 'key ' || n end"), state)
        await store.pause(QUEUE, by="ann")
        await store.publish_batch([message(b"free", queue=OTHER) for _ in range(LIMIT - 1)])
        plans = await told(store)

        beside = await claim(store, plans, QUEUE, OTHER, rows=100, pages=1_000)
        alone = await claim(store, plans, QUEUE, rows=20, pages=50)

        assert [each.body for each in beside.deliveries] == [b"free"] * (LIMIT - 1)
        assert (list(alone.deliveries), alone.next_in, alone.full) == ([], None, False)


async def test_a_probe_reads_as_little_as_a_claim(postgres_url: str, state: str) -> None:
    async with open_store(postgres_url) as store:
        await run(postgres_url, backlog("null::text"), state)
        await store.pause(QUEUE, by="worker", until=LEASE, automatic=True)
        await run(postgres_url, "update nightmail_controls set until = since")
        plans = await told(store)

        probe = await claim(store, plans, QUEUE, rows=100, pages=500)

        assert (len(probe.deliveries), probe.probe) == (1, True)


async def test_what_waits_for_paused_keys_is_not_walked_over(postgres_url: str, state: str) -> None:
    async with open_store(postgres_url) as store:
        await run(postgres_url, backlog(f"'key ' || n % {KEYS}"))
        # Each key is held by a message that was claimed before: those come first in every later look.
        held: list[Delivery] = []
        while len(held) < KEYS:
            token = uuid4()
            held += (await store.claim([QUEUE], limit=KEYS, lease=LEASE, token=token)).deliveries
        await store.settle([Settlement(delivery, Retry(AT_ONCE)) for delivery in held])
        await run(postgres_url, PAUSE_KEYS, state)
        await store.publish_batch([message(b"free") for _ in range(LIMIT * 2)])
        await store.publish_batch([message(b"free", ordering_key=f"free {n}") for n in range(LIMIT * 2)])
        plans = await told(store)

        taken: list[Any] = []
        for _ in range(8):
            # The first message of each key that a window does not show is asked for: a row for each key.
            claimed = await claim(store, plans, QUEUE, rows=3_000, pages=6_000)
            taken += claimed.deliveries

        assert [each.body for each in taken] == [b"free"] * LIMIT * 4
        assert not claimed.full


async def test_what_an_operator_asks_reads_no_backlog(postgres_url: str, state: str) -> None:
    async with open_store(postgres_url) as store:
        await run(postgres_url, backlog(f"case when n % 2 = 0 then 'key ' || n % {KEYS} end"), state)
        running = await store.claim([QUEUE], limit=LIMIT, lease=LEASE, token=uuid4())
        async with connection(postgres_url) as own:
            last = await own.fetchval("select max(id) from nightmail_messages")
        plans = Plans()
        assert store._opened is not None
        await store._opened.lanes.publish.run(plans.listen)

        facts = await store.facts(last)
        for plan in await plans.all("nightmail_messages"):
            within("rows", work(plan)[0], 2_500)
        gone = await store.facts(last + 1)
        for table in ("nightmail_dead", "nightmail_messages"):
            for plan in await plans.all(table):
                within("rows", work(plan)[0], 10)
        leases = await store.leases()
        for plan in await plans.all("nightmail_messages"):
            # Of each of three levels the first ten thousand are read, once.
            rows, pages = work(plan)
            within("rows", rows, 30_000)
            within("pages", pages, 6_000)

        assert (facts.ahead, gone.message) == (1_000, None)
        assert sorted(each.id for each in leases) == sorted(each.id for each in running.deliveries)
