"""What MariaDB reads for a claim and a settlement follows the batch and not the backlog, and a claim blocks no one.

Plans and counts are those of the store's own statements on the store's own connections: each statement is explained on
the connection that sends it, just before it is sent, and the rows it really touches are the server's own count.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any
from uuid import uuid4

import pytest

from nightmail.outcome import Dead, Done, Outcome, Release, Retry, WriteResult
from nightmail.store import Claimed, Settlement
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.dialect import MARIADB
from nightmail.stores.mysql.lane import Lane
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.requests import Answer
from nightmail.stores.mysql.wakeups import TOGETHER
from nightmail.stores.shared.marks import LEVELS
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, message
from tests.counters.baseline import within
from tests.stores.mysql.support import connection, execute, open_store, run
from tests.stores.support import claim, done

pytestmark = [pytest.mark.mysql, pytest.mark.slow]

FUTURE = 50_000
DUE = 2_000
BATCH = 50

FILL_FUTURE = f"""
    insert into nightmail_messages
        (queue, priority, due_at, published_at, headers, body, ordering_key, timer_id, timer_key)
    select '{QUEUE}', seq % 3, utc_timestamp(6) + interval 1 day + interval seq second, utc_timestamp(6),
           '{{}}', 'x', if(seq % 10 = 0, concat('key ', seq), null), concat('timer ', seq), concat('timer ', seq)
    from seq_1_to_{FUTURE}
"""
FILL_DUE = f"""
    insert into nightmail_messages (queue, priority, due_at, published_at, headers, body, ordering_key)
    select '{QUEUE}', seq % 3, utc_timestamp(6), utc_timestamp(6),
           '{{}}', 'x', if(seq % 10 = 0, concat('due key ', seq), null)
    from seq_1_to_{DUE}
"""
ANALYZE = "analyze table nightmail_messages"

STATES = {
    "never analyzed": [FILL_FUTURE, FILL_DUE],
    "analyzed while empty": [ANALYZE, FILL_FUTURE, FILL_DUE],
    "analyzed after it was drained": [
        FILL_FUTURE,
        "delete from nightmail_messages",
        ANALYZE,
        FILL_FUTURE,
        FILL_DUE,
    ],
    "analyzed when full": [FILL_FUTURE, FILL_DUE, ANALYZE],
    "without future messages": [FILL_DUE, ANALYZE],
}

EXPLAINED = ("select", "(select", "update", "delete", "insert")


class Plans:
    """The plans of the statements that one connection sends, and how many rows the server touched for them."""

    def __init__(self) -> None:
        self._told: list[tuple[str, list[dict[str, Any]]]] = []

    async def listen(self, link: Link) -> None:
        ask = link.ask

        async def explained(*statements: str) -> list[Answer]:
            for sent in statements:
                statement = sent.removeprefix(MARIADB.skips_locked)
                if statement.lstrip().startswith(EXPLAINED) and "nightmail_" in statement:
                    (plan,) = await ask(f"explain format=json {statement}")
                    self._told.append((statement, list(nodes(json.loads(plan.rows[0][0])))))
            return await ask(*statements)

        link.ask = explained  # type: ignore[method-assign]

    def told(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """The statements since the last time, with the tables their plans read."""
        told, self._told = self._told, []
        return told


def nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """Every part of a plan."""
    if isinstance(plan, dict):
        yield plan
        for part in plan.values():
            yield from nodes(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from nodes(part)


def assert_by_index(told: list[tuple[str, list[dict[str, Any]]]]) -> None:
    """No statement reads the messages from end to end or sorts rows that it locks, and each uses the index meant."""
    assert told
    for statement, parts in told:
        for part in parts:
            # A union puts its few rows into a table of its own; what is locked must not be sorted.
            if "for update" in statement:
                within("sorts of what is locked", "filesort" in part, 0, statement)
            table = part.get("table", {})
            if isinstance(table, dict) and table.get("table_name") in ("m", "s", "h", "f"):
                where = (statement, table)
                within("full scans", table["access_type"] in ("ALL", "index"), 0, where)
                if table["table_name"] == "m":
                    meant = ("PRIMARY", "nightmail_claim", "nightmail_leased")
                    within("other indexes", table["key"] not in meant, 0, where)


async def rows_touched(link: Link) -> int:
    """How many rows the server has read on this connection so far, without those of its own temporary tables."""
    names = ("first", "key", "last", "next", "prev", "rnd")
    wanted = ", ".join(f"'Handler_read_{name}'" for name in names)
    (found,) = await link.ask(f"show session status where variable_name in ({wanted})")
    return sum(int(value) for _, value in found.rows)


@asynccontextmanager
async def prepared(url: str, state: str) -> AsyncIterator[tuple[MySQLStore, Lane, Lane]]:
    """A store over a table in this state, with the lanes on which it claims and settles."""
    async with open_store(url) as store:
        for statement in STATES[state]:
            await run(url, statement)
        assert store._opening.now is not None
        yield store, store._opening.now.claim_lane, store._opening.now.settle_lane


@pytest.fixture(params=list(STATES))
def state(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


async def test_every_statement_of_a_claim_and_a_settlement_goes_by_an_index_and_none_sorts_what_it_locks(
    mysql_url: str,
    state: str,
) -> None:
    async with prepared(mysql_url, state) as (store, claim_lane, settle_lane):
        claims, settles = Plans(), Plans()
        await claim_lane.run(claims.listen)
        await settle_lane.run(settles.listen)

        async def claim_some(limit: int = BATCH, queue: str = QUEUE) -> Claimed:
            claimed = await store.claim([queue], limit=limit, lease=LEASE, token=uuid4())
            assert_by_index(claims.told())
            return claimed

        async def settle(*outcomes: Outcome) -> None:
            claimed = await claim_some()
            batch = [Settlement(*pair) for pair in zip(claimed.deliveries, cycle(outcomes), strict=False)]
            assert set(await store.settle(batch)) == {"written"}
            assert_by_index(settles.told())

        # The first looks from end to end, the others begin at a mark.
        for _ in range(3):
            assert len((await claim_some()).deliveries) == BATCH
        await settle(Done())
        await settle(Done(), Retry(HOUR), Dead("rejected"), Release())
        claimed = await claim_some()
        assert set(await store.extend(claimed.deliveries, LEASE * 2)) == {"written"}
        assert_by_index(settles.told())
        # One that comes back short, and one that finds nothing.
        await claim_some(limit=DUE)
        assert (await claim_some()).deliveries == []
        await claim_some(queue="nothing")


async def test_what_is_read_follows_the_batch_and_not_the_backlog(mysql_url: str, state: str) -> None:
    async with prepared(mysql_url, state) as (store, claim_lane, settle_lane):

        async def touched(lane: Lane, work: Any) -> tuple[Any, int]:
            before = await lane.run(rows_touched)
            result = await work
            return result, await lane.run(rows_touched) - before

        def claim_some(limit: int = BATCH, queue: str = QUEUE) -> Any:
            return store.claim([queue], limit=limit, lease=LEASE, token=uuid4())

        for _ in range(3):
            claimed, rows = await touched(claim_lane, claim_some())
            assert len(claimed.deliveries) == BATCH
            within("rows", rows, BATCH * 12)

        batch = [Settlement(delivery, Done()) for delivery in claimed.deliveries]
        results, rows = await touched(settle_lane, store.settle(batch))
        assert set(results) == {"written"}
        within("rows", rows, BATCH * 6)

        claimed, _ = await touched(claim_lane, claim_some())
        outcomes: Iterator[Outcome] = cycle([Done(), Retry(HOUR), Dead("rejected"), Release()])
        batch = [Settlement(*pair) for pair in zip(claimed.deliveries, outcomes, strict=False)]
        results, rows = await touched(settle_lane, store.settle(batch))
        assert set(results) == {"written"}
        within("rows", rows, BATCH * 12)

        # One that comes back short walks over what is leased, and over nothing that is due later.
        await claim_some(limit=DUE)
        claimed, rows = await touched(claim_lane, claim_some())
        assert not claimed.deliveries
        assert claimed.next_in is not None
        within("rows", rows, DUE * 4)

        claimed, rows = await touched(claim_lane, claim_some(queue="nothing"))
        within("rows", rows, 100)


async def test_what_an_operator_asks_reads_no_backlog(mysql_url: str, state: str) -> None:
    async with prepared(mysql_url, state) as (store, *_):
        assert store._opening.now is not None
        lane, plans = store._opening.now.publish_lane, Plans()

        async def touched(work: Any) -> tuple[Any, int]:
            before = await lane.run(rows_touched)
            result = await work
            return result, await lane.run(rows_touched) - before

        running = await store.claim([QUEUE], limit=BATCH, lease=LEASE, token=uuid4())
        waiting, rows = await touched(store.peek(limit=10))
        assert len(waiting) == 10
        within("rows", rows, BATCH * 8)
        leases, rows = await touched(store.leases())
        assert sorted(each.id for each in leases) == sorted(each.id for each in running.deliveries)
        within("rows", rows, BATCH * 4)
        timers, rows = await touched(store.peek(timer_id="in no queue"))
        assert timers == []
        within("rows", rows, 10)

        # All are counted, but only in the index; of the rows, those that run are read, and the oldest.
        await lane.run(plans.listen)
        await store.stats()
        told = plans.told()
        (counted,) = [parts for statement, parts in told if "count(case" in statement]
        (table,) = [part["table"] for part in counted if isinstance(part.get("table"), dict)]
        assert (table["access_type"], table["key"]) == ("index", "nightmail_claim")
        assert table["using_index"]
        assert_by_index([each for each in told if each[1] is not counted and "nightmail_messages" in each[0]])


async def test_the_question_asked_all_the_time_while_idle_is_cheap(mysql_url: str) -> None:
    async with prepared(mysql_url, "analyzed when full") as (store, _, _):
        await claim(store, limit=DUE)
        assert store._opening.now is not None
        tower = store._opening.now.listener
        with store.listen(["nothing", "nor here"]):
            before = await tower._lane.run(rows_touched)
            for _ in range(10):
                await tower._look()
            within("rows", await tower._lane.run(rows_touched) - before, 10 * 50)


async def test_whether_anything_is_due_is_read_by_ranges_of_any_number_of_queues(
    mysql_url: str,
) -> None:
    queues = [QUEUE, *(f"queue-{number}" for number in range(3 * TOGETHER))]
    async with prepared(mysql_url, "analyzed when full") as (store, _, _):
        await claim(store, limit=DUE)
        assert store._opening.now is not None
        tower = store._opening.now.listener
        plans = Plans()
        await tower._lane.run(plans.listen)
        with store.listen(queues):
            before = await tower._lane.run(rows_touched)
            await tower._look()
            touched = await tower._lane.run(rows_touched) - before

    told = plans.told()
    assert len(told) == 1  # Nothing is due: what of it can be claimed is not asked.
    assert_by_index(told)
    within("rows", touched, len(queues) * len(LEVELS) + DUE + 100)


# ------------------------------------------------------------------------------------ no waiting


async def test_two_open_claims_both_get_messages(mysql_url: str) -> None:
    async with (
        prepared(mysql_url, "without future messages") as (store, lane, _),
        open_store(mysql_url) as other,
    ):
        held, go_on = asyncio.Event(), asyncio.Event()

        async def stop_before_the_leases(link: Link) -> None:
            ask = link.ask

            async def asked(*statements: str) -> list[Answer]:
                if any(statement.startswith("update") for statement in statements):
                    held.set()
                    await go_on.wait()
                return await ask(*statements)

            link.ask = asked  # type: ignore[method-assign]

        await lane.run(stop_before_the_leases)
        first = asyncio.create_task(claim(store, limit=BATCH))
        await held.wait()

        # The first has locked its rows, and not committed.
        async with asyncio.timeout(2):
            second = await claim(other, limit=BATCH)
        go_on.set()

        assert len(second) == BATCH
        assert {delivery.id for delivery in await first}.isdisjoint(delivery.id for delivery in second)


async def test_an_open_claim_has_locked_what_it_takes_and_nothing_it_walked_over(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, open_store(mysql_url) as other:
        keys = ("a", None)
        await store.publish_batch([message(b"%d" % n, ordering_key=keys[n % 2]) for n in range(40)])
        running = await claim(other, limit=5)
        assert store._opening.now is not None
        lane = store._opening.now.claim_lane
        await claim(store, queue="nothing")
        outcome: list[WriteResult] = []

        async def settle_before_the_leases(link: Link) -> None:
            ask = link.ask

            async def asked(*statements: str) -> list[Answer]:
                if any(statement.startswith("update") for statement in statements):
                    async with asyncio.timeout(2):
                        outcome.extend(await done(other, running))
                return await ask(*statements)

            link.ask = asked  # type: ignore[method-assign]

        await lane.run(settle_before_the_leases)

        taken = await claim(store, limit=5)

        assert outcome == [WriteResult.WRITTEN] * 5
        assert len(taken) == 5
        assert {delivery.id for delivery in taken}.isdisjoint(delivery.id for delivery in running)


async def test_a_cancel_that_meets_a_running_message_leaves_it_unlocked(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        await execute(own, "set session transaction isolation level read committed")
        await store.publish(message(timer_id="t"))
        running = await claim(store)
        await own.begin()

        assert await store.cancel(QUEUE, "t", transaction=own) is False
        assert await store.cancel_all(QUEUE, transaction=own) == 0
        assert await store.reschedule(QUEUE, "t", HOUR, transaction=own) is False

        assert await store.extend(running, LEASE) == [WriteResult.WRITTEN]
        assert await done(store, running) == [WriteResult.WRITTEN]
        await own.rollback()


async def test_an_open_claim_keeps_no_other_from_publishing(mysql_url: str) -> None:
    async with open_store(mysql_url) as store, connection(mysql_url) as own:
        await execute(own, "set session transaction isolation level read committed")
        await store.publish(message(b"the only one"))
        assert store._opening.now is not None
        sent: list[str] = []

        async def note(link: Link) -> None:
            ask = link.ask

            async def asked(*statements: str) -> list[Answer]:
                sent.extend(statements)
                return await ask(*statements)

            link.ask = asked  # type: ignore[method-assign]

        await store._opening.now.claim_lane.run(note)
        await claim(store)
        await claim(store)
        takes = [statement for statement in sent if "for update skip locked" in statement]
        assert takes

        # The same in a transaction that stays open, when there is nothing more to be found.
        await own.begin()
        for statement in takes:
            await execute(own, statement.replace("%", "%%"))
        async with asyncio.timeout(2):
            await store.publish_batch([message(b"%d" % n, priority=n % 10) for n in range(20)])
            await store.publish(message(timer_id="t"))
        await own.rollback()


async def test_a_backlog_of_future_messages_costs_an_empty_claim_nothing(mysql_url: str) -> None:
    async with open_store(mysql_url) as store:
        assert store._opening.now is not None
        await claim(store)
        before = await store._opening.now.claim_lane.run(rows_touched)
        await claim(store)
        empty = await store._opening.now.claim_lane.run(rows_touched) - before
        await run(mysql_url, FILL_FUTURE)

        before = await store._opening.now.claim_lane.run(rows_touched)
        await claim(store)
        beside_many = await store._opening.now.claim_lane.run(rows_touched) - before

        within("rows", beside_many, empty * 1.3 + 20)
