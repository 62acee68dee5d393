"""What MariaDB reads for dead letters follows the batch, whatever else has died or was delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import cycle
from typing import Any
from uuid import uuid4

import pytest

from nightmail.outcome import Dead, Done, Outcome, Release, Retry
from nightmail.records import DeadFilter, Swept
from nightmail.store import Settlement
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.lane import Lane
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE
from tests.counters.baseline import within
from tests.plans.test_mysql_plans import Plans, rows_touched
from tests.stores.mysql.support import open_store, run

pytestmark = [pytest.mark.mysql, pytest.mark.slow]

MANY = 20_000
BATCH = 50
YEAR = timedelta(days=365)
DAY = timedelta(days=1)

LETTER = (
    "message_id, died_at, due_at, published_at, attempts, deliveries, priority, queue, timer_id, reason, "
    "headers, body"
)
# A third was given up, the others may be taken later; all of them died today.
FILL_LETTERS = f"""
    insert into nightmail_dead ({LETTER})
    select seq, utc_timestamp(6), if(seq % 3, utc_timestamp(6) + interval 1 day, null), utc_timestamp(6), 1, 1, 4,
           if(seq % 2, '{QUEUE}', 'elsewhere'), concat('t', seq), 'rejected', '{{}}', 'x'
    from seq_1_to_{MANY}
"""
# Those to be had, which died two years ago.
FILL_DUE = f"""
    insert into nightmail_dead ({LETTER})
    select seq, utc_timestamp(6) - interval 2 year, utc_timestamp(6), utc_timestamp(6), 1, 1, 4,
           '{QUEUE}', concat('due', seq), 'rejected', '{{}}', 'x'
    from seq_1_to_500
"""
FILL_DELIVERED = f"""
    insert into nightmail_delivered
        (message_id, published_at, due_at, delivered_at, attempts, deliveries, priority, queue, headers, body)
    select seq, utc_timestamp(6), utc_timestamp(6), utc_timestamp(6) - interval if(seq > 500, 0, 2) year,
           0, 1, 4, '{QUEUE}', '{{}}', 'x'
    from seq_1_to_{MANY}
"""
FILL_WINDOWS = f"""
    insert into nightmail_dedup
    select '{QUEUE}', concat('t', seq), utc_timestamp(6) + interval if(seq > 500, 1, -1) day from seq_1_to_{MANY}
"""
FILL_MESSAGES = f"""
    insert into nightmail_messages (queue, priority, due_at, published_at, headers, body, timer_id, timer_key)
    select '{QUEUE}', 4, utc_timestamp(6) + interval 1 day, utc_timestamp(6), '{{}}', 'x',
           concat('m', seq), concat('m', seq)
    from seq_1_to_{MANY}
"""
FILL = [FILL_LETTERS, FILL_DUE, FILL_DELIVERED, FILL_WINDOWS, FILL_MESSAGES]
ANALYZE = "analyze table nightmail_dead, nightmail_delivered, nightmail_dedup, nightmail_messages"

STATES = {
    "never analyzed": FILL,
    "analyzed while empty": [ANALYZE, *FILL],
    "analyzed when full": [*FILL, ANALYZE],
    "with nothing but what is due": [FILL_DUE, ANALYZE],
}


@pytest.fixture(params=list(STATES))
def state(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@asynccontextmanager
async def prepared(url: str, state: str) -> AsyncIterator[tuple[MySQLStore, Lane, Lane, Lane]]:
    """A store over tables in this state, with the lanes on which it claims, settles and does what an operator asks."""
    async with open_store(url) as store:
        for statement in STATES[state]:
            await run(url, statement)
        assert store._opening.now is not None
        yield (
            store,
            store._opening.now.claim_lane,
            store._opening.now.settle_lane,
            store._opening.now.publish_lane,
        )


def assert_by_index(told: list[tuple[str, list[dict[str, Any]]]], *, walks: bool = False) -> None:
    """No statement sorts or reads a table from end to end; `walks`: but one may walk along the ids, to its limit."""
    assert any(part.get("table_name") in ("d", "m") for _, parts in told for part in parts)
    for statement, parts in told:
        for part in parts:
            within("rows sorted", "filesort" in part, 0, statement)
            table = part.get("table", {})
            if isinstance(table, dict) and table.get("table_name") in ("d", "m"):
                walk = walks and "order by d.id" in statement and table.get("key") == "PRIMARY"
                allowed = ("range", "ref", "eq_ref", "const", *(("index",) if walk else ()))
                within("full scans", table["access_type"] not in allowed, 0, (statement, table))


async def test_every_statement_on_letters_goes_by_an_index_and_none_sorts(mysql_url: str, state: str) -> None:
    async with prepared(mysql_url, state) as (store, claim, settle, operate):
        claims, settles, operates = Plans(), Plans(), Plans()
        await claim.run(claims.listen)
        await settle.run(settles.listen)
        await operate.run(operates.listen)
        token = uuid4()

        taken = (await store.claim_dead([QUEUE], limit=BATCH, lease=LEASE, token=token)).deliveries
        assert len(taken) == BATCH
        assert_by_index(claims.told())
        assert await store.recall_dead([QUEUE], token) == BATCH
        assert_by_index(claims.told())
        taken = (await store.claim_dead([QUEUE], limit=BATCH, lease=LEASE, token=token)).deliveries
        assert len(taken) == BATCH
        assert_by_index(claims.told())
        await store.claim_dead(["elsewhere", "nowhere"], limit=BATCH, lease=LEASE, token=uuid4())
        assert_by_index(claims.told())

        assert set(await store.extend(taken, LEASE * 2)) == {"written"}
        assert_by_index(settles.told())
        outcomes: Iterator[Outcome] = cycle([Done(), Retry(HOUR), Dead("given up"), Release()])
        batch = [Settlement(letter, outcome) for letter, outcome in zip(taken, outcomes, strict=False)]
        assert set(await store.settle(batch)) == {"written"}
        assert_by_index(settles.told())

        letters = (await store.dead(DeadFilter(queue=QUEUE)))[:BATCH]
        assert_by_index(operates.told())
        ids = range(letters[-1].id, letters[-1].id + BATCH)
        await store.find(ids)
        assert_by_index(operates.told())
        assert len(await store.redrive(letters)) == BATCH
        assert_by_index(operates.told())
        assert await store.purge(DeadFilter(queue=QUEUE), limit=BATCH) == BATCH
        assert_by_index(operates.told())
        assert await store.purge(DeadFilter(queue=QUEUE, ids=(1, 2, 3)), limit=BATCH) <= 3
        assert_by_index(operates.told())
        assert await store.purge(DeadFilter(older_than=DAY), limit=BATCH) == BATCH
        assert_by_index(operates.told(), walks=True)
        assert (await store.sweep(older_than=YEAR, limit=BATCH)).dead == BATCH
        assert_by_index(operates.told())


async def test_what_is_read_for_letters_follows_the_batch(mysql_url: str, state: str) -> None:
    async with prepared(mysql_url, state) as (store, claim, settle, operate):

        async def touched(lane: Lane, work: Any) -> tuple[Any, int]:
            before = await lane.run(rows_touched)
            result = await work
            return result, await lane.run(rows_touched) - before

        claimed, rows = await touched(
            claim, store.claim_dead([QUEUE], limit=BATCH, lease=LEASE, token=uuid4())
        )
        assert len(claimed.deliveries) == BATCH
        within("rows", rows, BATCH * 8)

        batch = [Settlement(letter, Retry()) for letter in claimed.deliveries]
        _, rows = await touched(settle, store.settle(batch))
        within("rows", rows, BATCH * 8)

        ids = tuple(letter.id for letter in await store.dead(DeadFilter(), limit=BATCH))
        _, rows = await touched(operate, store.find(ids))
        within("rows", rows, BATCH * 4)
        summary, rows = await touched(operate, store.summarize_dead(DeadFilter(ids=ids)))
        assert summary.count == BATCH
        within("rows", rows, BATCH * 8)
        summary, rows = await touched(operate, store.summarize_dead(DeadFilter(queue="nothing")))
        assert summary.count == 0
        within("rows", rows, 20)

        letters = await store.dead(DeadFilter(queue=QUEUE, ids=tuple(range(1, 200))))
        moved, rows = await touched(operate, store.redrive(letters[:BATCH]))
        assert len(moved) == min(len(letters), BATCH)
        within("rows", rows, BATCH * 16)

        purged, rows = await touched(operate, store.purge(DeadFilter(queue=QUEUE), limit=BATCH))
        assert purged == BATCH
        within("rows", rows, BATCH * 8)

        swept, rows = await touched(operate, store.sweep(older_than=YEAR, limit=BATCH))
        assert swept.dead == BATCH
        within("rows", rows, BATCH * 3 * 8)
        nothing, rows = await touched(operate, store.sweep(older_than=YEAR * 10, limit=BATCH))
        assert nothing == Swept(dedup=swept.dedup)
        within("rows", rows, BATCH * 8)

        empty, rows = await touched(
            claim, store.claim_dead(["nothing"], limit=BATCH, lease=LEASE, token=uuid4())
        )
        assert not empty.deliveries
        within("rows", rows, 20)
