"""The claim statement of (c) on its own: what it locks, what it looks at, and what it costs when there is little."""

import statistics
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from benchmarks.table_designs.designs import C50
from benchmarks.table_designs.explain import explain
from benchmarks.table_designs.load import (
    EVERYTHING,
    LEVELS,
    Connection,
    Range,
    claim_arguments,
    connect,
    from_mark,
    open_table,
)
from benchmarks.table_designs.report import print_table

_CLAIM = C50.sql("claim")
_LONG_AGO = (datetime(2000, 1, 1, tzinfo=UTC), 0)
_IN_TWO_PARTS = [
    *(Range(level, start=_LONG_AGO) for level in LEVELS),
    *(Range(level, end=_LONG_AGO) for level in LEVELS),
]


async def run(url: str, *, repeat: int) -> None:
    """Print one table for each question."""
    await _locks(url)
    await _empty_levels(url, repeat)
    await _ways_back(url, repeat)
    await _leased_in_front(url)


async def _locks(url: str) -> None:
    """Does it lock what it takes and nothing else, and look at no range that it does not need?"""
    rows = []
    async with open_table(url, C50) as table, connect(url, C50) as other:
        await table.fill(1_000, start=datetime.now(UTC) - timedelta(hours=1))
        await table.connection.execute("update messages set priority = 9 where id <= 4")
        await table.connection.execute("update messages set priority = 5 where id between 100 and 102")
        for limit in (3, 10, 1_000, 1_001):
            plan = await explain(
                table.connection, _CLAIM, *claim_arguments(_IN_TWO_PARTS, limit, uuid.uuid4())
            )
            [looked_at] = [node.loops for node in plan.nodes if node.index == "messages_claim"]
            transaction = table.connection.transaction()
            await transaction.start()
            claimed = len(await table.claim(_IN_TWO_PARTS, limit, uuid.uuid4()))
            locked = 1_000 - await other.fetchval(
                "with free as (select 1 from messages for update skip locked) select count(*) from free"
            )
            await transaction.rollback()
            assert claimed == locked
            rows.append([f"{limit:,}", f"{claimed:,}", f"{locked:,}", f"{looked_at} of {len(_IN_TWO_PARTS)}"])
    print_table(
        "1,000 due messages on levels 9, 5 and 0; ten levels from a mark on, then ten behind it",
        ["limit", "claimed", "locked", "ranges looked at"],
        rows,
    )


async def _empty_levels(url: str, repeat: int) -> None:
    """What does a look cost when nothing is due, and what does planning add to it?"""
    looks = {"1 level": [Range(0)], "10 levels": EVERYTHING, "10 levels in two parts": _IN_TWO_PARTS}
    rows = []
    async with open_table(url, C50) as table:
        await table.fill(100_000, start=datetime.now(UTC) + timedelta(days=1))
        await table.connection.execute("vacuum analyze messages")
        for mode in ("auto", "force_generic_plan"):
            async with connect(url, C50, plan_cache_mode=mode) as connection:
                for title, ranges in looks.items():
                    [milliseconds] = await _medians(connection, [_CLAIM], ranges, limit=10, repeat=repeat)
                    plan = await explain(connection, _CLAIM, *claim_arguments(ranges, 10, uuid.uuid4()))
                    rows.append([mode, title, f"{milliseconds:.2f}", f"{plan.buffers}"])
    print_table(
        "A look that finds nothing, beside 100,000 future rows",
        ["plan_cache_mode", "look", "round trip, ms", "buffers"],
        rows,
    )


async def _ways_back(url: str, repeat: int) -> None:
    """How does the update best find the rows that were picked?"""
    by_id = "where m.id = any(array(select p.id from picked p))"
    by_place = _CLAIM.replace("select c.id", "select c.tid").replace(
        "select m.id\n", "select m.ctid as tid\n"
    )
    statements = {
        "array of ids": _CLAIM,
        "array of ctids": by_place.replace(by_id, "where m.ctid = any(array(select p.tid from picked p))"),
        "join by id": _CLAIM.replace(by_id, "from picked p where m.id = p.id"),
        "join by ctid": by_place.replace(by_id, "from picked p where m.ctid = p.tid"),
    }
    async with open_table(url, C50) as table:
        await table.fill(20_000, start=datetime.now(UTC) - timedelta(hours=1))
        await table.fill(100_000, start=datetime.now(UTC) + timedelta(days=1))
        await table.connection.execute("vacuum analyze messages")
        rows = [[title] for title in statements]
        for limit in (500, 10):
            medians = await _medians(
                table.connection, list(statements.values()), EVERYTHING, limit=limit, repeat=repeat // 5
            )
            for row, statement, milliseconds in zip(rows, statements.values(), medians, strict=True):
                plan = await explain(
                    table.connection, statement, *claim_arguments(EVERYTHING, limit, uuid.uuid4())
                )
                row += [f"{milliseconds:.2f}", f"{plan.buffers:,}"]
    print_table(
        "Ways back to the picked rows, with good statistics",
        ["update", "500: ms", "500: buffers", "10: ms", "10: buffers"],
        rows,
    )


async def _leased_in_front(url: str) -> None:
    """What do rows leased by others cost, which a claim must step over?"""
    rows = []
    for leased in (0, 1_000, 10_000, 50_000):
        async with open_table(url, C50) as table:
            await table.fill(leased + 1_000, start=datetime.now(UTC) - timedelta(hours=1))
            mark = _LONG_AGO
            if leased:
                claimed = await table.claim(EVERYTHING, leased, uuid.uuid4())
                mark = max((row["due_at"], row["id"]) for row in claimed)
            row = [f"{leased:,}"]
            for ranges in (EVERYTHING, from_mark(mark)):
                plan = await explain(table.connection, _CLAIM, *claim_arguments(ranges, 10, uuid.uuid4()))
                row += [f"{plan.milliseconds:.1f}", f"{plan.buffers:,}"]
            rows.append(row)
    print_table(
        "A claim of 10 with leased rows in front of it",
        ["leased", "full look, ms", "buffers", "from the mark, ms", "buffers"],
        rows,
    )


async def _medians(
    connection: Connection, statements: Sequence[str], ranges: Sequence[Range], *, limit: int, repeat: int
) -> list[float]:
    """Milliseconds of each statement's median round trip, run in turn; nothing is kept."""
    times: list[list[float]] = [[] for _ in statements]
    for _ in range(repeat):
        for statement, found in zip(statements, times, strict=True):
            transaction = connection.transaction()
            await transaction.start()
            began = time.perf_counter()
            await connection.fetch(statement, *claim_arguments(ranges, limit, uuid.uuid4()))
            found.append(time.perf_counter() - began)
            await transaction.rollback()
    return [statistics.median(found) * 1e3 for found in times]
