"""What a claim reads while another session's old snapshot keeps everything that was delivered in the indexes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from nightmail.stores.shared import marks
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from testkit.servers import Postgres
from tests.counters.baseline import within
from tests.plans.test_postgres_ordering_plans import told, work
from tests.stores.postgres.support import connection, open_store
from tests.stores.support import done

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

DEAD = 20_000
MOST_ROWS = 100
MOST_PAGES = 400

# Delivered within the last hour, at two levels. Every tenth had an ordering key, and waited for it in the other index.
FILL = f"""
    alter table nightmail_messages set (autovacuum_enabled = off);
    insert into nightmail_messages (queue, priority, due_at, published_at, headers, body, ordering_key)
    select '{QUEUE}', n % 2 * 5, clock_timestamp() - interval '1 minute' - n * interval '0.15 second',
           clock_timestamp(), '{{}}', 'x', case when n % 10 < 2 then 'key ' || n end
    from generate_series(1, {DEAD}) as n;
"""


@pytest.fixture(autouse=True)
def _can_explain(postgres_server: Postgres) -> None:
    if not postgres_server.ours:
        pytest.skip("loading auto_explain needs a superuser")


@asynccontextmanager
async def held_snapshot(url: str) -> AsyncIterator[None]:
    """All that was delivered can be seen by another session, and stays in the indexes."""
    async with connection(url) as own, connection(url) as other:
        await own.execute(FILL)
        async with other.transaction(isolation="repeatable_read"):
            await other.fetchval("select count(*) from nightmail_messages")
            await own.execute("delete from nightmail_messages")
            yield


@pytest.mark.parametrize("dear", [True, False])
async def test_a_short_claim_does_not_walk_over_what_was_delivered(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, dear: bool
) -> None:
    # Whatever the machine, looks without marks are dear, or never; and the test does not last until the next one.
    monkeypatch.setattr(marks, "CHEAP", -1.0 if dear else float("inf"))
    monkeypatch.setattr(marks, "LOOK_BEHIND_EVERY", 3600.0)
    async with open_store(postgres_url) as store, held_snapshot(postgres_url):
        plans = await told(store)
        spent: list[tuple[int, int]] = []
        for number in range(6):
            if number % 2:
                await store.publish(message(b"new", priority=number))
            claimed = await store.claim([QUEUE], limit=50, lease=LEASE, token=uuid4())
            await done(store, list(claimed.deliveries))
            assert len(claimed.deliveries) == number % 2
            spent.append(work(await plans.only()))

    first, *later = spent
    assert first[1] > DEAD / 10
    if dear:
        within("rows", max(rows for rows, _ in later), MOST_ROWS)
        within("pages", max(pages for _, pages in later), MOST_PAGES)
    else:
        # This is what they would cost.
        assert min(pages for _, pages in later) > DEAD / 10
