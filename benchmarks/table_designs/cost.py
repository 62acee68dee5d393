"""What one message costs in each design: time, WAL, HOT updates, and what is left behind."""

import statistics
import uuid
from collections import defaultdict
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

from benchmarks.table_designs.designs import C45, C50, C50_MARK, C70, C90, A, B, Design
from benchmarks.table_designs.explain import prepared
from benchmarks.table_designs.load import (
    EVERYTHING,
    MILLISECOND,
    Mark,
    Table,
    Times,
    claim_arguments,
    open_table,
)
from benchmarks.table_designs.report import print_table, spread

DESIGNS = (A, B, C45, C50, C70, C90, C50_MARK)
_BATCH = 500
_SMALL_BATCH = 10
_BACKLOG = timedelta(hours=1)

COLUMNS = {
    "µs per message by the clock": ("insert", "claim 500", "settle 500", "claim 10", "settle 10"),
    "µs per message of the server's processor": (
        "insert CPU",
        "claim 500 CPU",
        "settle 500 CPU",
        "claim 10 CPU",
        "settle 10 CPU",
    ),
    "WAL bytes per message": (
        "insert WAL",
        "claim WAL 500",
        "settle WAL 500",
        "claim WAL 10",
        "extend WAL",
        "retry WAL",
    ),
    "HOT, %": ("HOT 500", "HOT 10", "HOT extend"),
    "left behind": ("table MB", "indexes MB", "dead rows", "look ms", "look buffers"),
}


async def run(url: str, *, messages: int, future: int, rounds: int) -> None:
    """Measure an empty table, then one with `future` rows that are not due; all designs in turn, `rounds` times."""
    async with AsyncExitStack() as stack:
        tables = [await stack.enter_async_context(open_table(url, design)) for design in DESIGNS]
        await _measure(f"{messages:,} messages, a table that was empty", tables, messages, rounds)
        for table in tables:
            await table.fill(future, start=datetime.now(UTC) + timedelta(days=1))
        await _measure(f"{messages:,} messages beside {future:,} that are not due", tables, messages, rounds)


async def _measure(title: str, tables: list[Table], messages: int, rounds: int) -> None:
    found: dict[Design, dict[str, list[float]]] = {table.design: defaultdict(list) for table in tables}
    for _ in range(rounds):
        for table in tables:
            for name, value in (await _round(table, messages)).items():
                found[table.design][name].append(value)
    for what, names in COLUMNS.items():
        rows = [[design.title, *(spread(values[name]) for name in names)] for design, values in found.items()]
        print_table(f"{title}: {what}", ["design", *names], rows)


async def _round(table: Table, messages: int) -> dict[str, float]:
    """Publish, drain in batches of 500, then a little in batches of 10."""
    few = max(messages // 50, 2 * _BATCH)
    await table.connection.execute("vacuum analyze messages")
    # Right after a checkpoint, the first change of an old page logs the whole page: so it comes first, not in between.
    await table.connection.execute("checkpoint")
    return {
        **await _publish(table, messages + 2 * few),
        **await _drain(table, messages, _BATCH),
        **await _drain(table, few, _SMALL_BATCH),
        **await _left_behind(table),
        **await _come_back(table, few),
    }


async def _publish(table: Table, messages: int) -> dict[str, float]:
    start = datetime.now(UTC) - _BACKLOG
    times = Times()
    before = await table.wal()
    for first in range(0, messages, _BATCH):
        due_at = [start + MILLISECOND * number for number in range(first, first + _BATCH)]
        await times.of(table, table.publish(due_at))
    return {
        **_per_message("insert", times, _BATCH),
        "insert WAL": (await table.wal() - before) / messages,
    }


async def _drain(table: Table, messages: int, batch: int) -> dict[str, float]:
    """Claim and settle in turn, counting each by itself."""
    mark = Mark()
    claims, settles = Times(), Times()
    wal_of_claims = 0
    before = await table.counters()
    for _ in range(messages // batch):
        token = uuid.uuid4()
        ranges = mark.ranges() if table.design.marked else EVERYTHING
        wal = await table.wal()
        rows = await claims.of(table, table.claim(ranges, batch, token))
        wal_of_claims += await table.wal() - wal
        mark.move((row["due_at"], row["id"]) for row in rows)
        settled = await settles.of(table, table.write("settle", [row["id"] for row in rows], token))
        assert settled == batch, settled
    after = await table.counters()
    return {
        **_per_message(f"claim {batch}", claims, batch),
        **_per_message(f"settle {batch}", settles, batch),
        f"claim WAL {batch}": wal_of_claims / messages,
        f"settle WAL {batch}": (after.wal - before.wal - wal_of_claims) / messages,
        f"HOT {batch}": 100 * (after.hot - before.hot) / (after.updated - before.updated),
    }


def _per_message(name: str, times: Times, batch: int) -> dict[str, float]:
    """Microseconds: the median by the clock, since a few wait for others, and the mean of the server's processor."""
    return {
        name: statistics.median(times.elapsed) / batch * 1e6,
        f"{name} CPU": statistics.mean(times.computed) / batch * 1e6,
    }


async def _left_behind(table: Table) -> dict[str, float]:
    """What a drained table still weighs, and what looking through all of it costs."""
    look = claim_arguments(EVERYTHING, 1, uuid.uuid4())
    # The first look marks the index entries of dead rows, so that later ones need not visit the rows again.
    async with prepared(table.connection, table.design.sql("claim")) as claim:
        await claim.run(*look)
        plan = await claim.run(*look)
    heap, indexes = await table.sizes()
    return {
        "table MB": heap / 2**20,
        "indexes MB": indexes / 2**20,
        "dead rows": (await table.counters()).dead,
        "look ms": plan.milliseconds,
        "look buffers": plan.buffers,
    }


async def _come_back(table: Table, messages: int) -> dict[str, float]:
    """Renew a lease and bring a message back: what is written for a message that is not done at once."""
    claims = []
    for _ in range(messages // _BATCH):
        token = uuid.uuid4()
        rows = await table.claim(EVERYTHING, _BATCH, token)
        claims.append((token, [row["id"] for row in rows]))
    start = await table.counters()
    for token, ids in claims:
        assert await table.write("extend", ids, token) == _BATCH
    extended = await table.counters()
    for token, ids in claims:
        assert await table.write("retry", ids, token) == _BATCH
    retried = await table.counters()
    await table.connection.execute("delete from messages where attempts > 0")
    return {
        "extend WAL": (extended.wal - start.wal) / messages,
        "HOT extend": 100 * (extended.hot - start.hot) / (extended.updated - start.updated),
        "retry WAL": (retried.wal - extended.wal) / messages,
    }
