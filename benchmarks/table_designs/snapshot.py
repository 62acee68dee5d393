"""How fast a table drains while another transaction holds a snapshot, so that nothing dead can be removed.

A dump, a forgotten transaction or a slow report does this to every table of the database. Then there is the morning
when all messages are due at the same moment.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg

from benchmarks.table_designs.designs import B_MARK, C50, C50_MARK, A, B, Design
from benchmarks.table_designs.explain import explain
from benchmarks.table_designs.load import (
    BEGINNING,
    EVERYTHING,
    MILLISECOND,
    Mark,
    claim_arguments,
    from_mark,
    open_table,
)
from benchmarks.table_designs.report import print_table, spread

_BATCH = 500
_AT_ONCE = timedelta(0)


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    design: Design
    step: timedelta = MILLISECOND
    by_time_alone: bool = False
    """Whether the mark is a due time and no more."""


CASES = (
    *(Case(design.title, design) for design in (A, B, B_MARK, C50, C50_MARK)),
    Case("(c) with the mark, all due at once", C50_MARK, _AT_ONCE),
    Case("(c) with a mark of the due time alone, all due at once", C50_MARK, _AT_ONCE, by_time_alone=True),
)


async def run(url: str, *, messages: int, rounds: int) -> None:
    """Drain `messages` under a held snapshot, and compare the first sixth with the last."""
    found: dict[Case, list[tuple[float, float, float, float]]] = defaultdict(list)
    for _ in range(rounds):
        for case in CASES:
            found[case].append(await _drain(url, case, messages))
    rows = []
    for case, results in found.items():
        first, last, milliseconds, buffers = zip(*results, strict=True)
        rows.append([case.title, spread(first), spread(last), spread(milliseconds), spread(buffers)])
    print_table(
        f"{messages:,} messages while another transaction holds a snapshot",
        [
            "design",
            "first sixth, messages/s",
            "last sixth, messages/s",
            "last claim ms",
            "last claim buffers",
        ],
        rows,
    )


async def _drain(url: str, case: Case, messages: int) -> tuple[float, float, float, float]:
    async with open_table(url, case.design) as table:
        await table.fill(messages, start=datetime.now(UTC) - timedelta(hours=1), step=case.step)
        await table.connection.execute("vacuum analyze messages")
        async with _held_snapshot(url, case.design):
            mark = Mark()
            times: list[float] = []
            for _ in range(messages // _BATCH - 1):
                token = uuid.uuid4()
                ranges = mark.ranges() if case.design.marked else EVERYTHING
                began = time.perf_counter()
                rows = await table.claim(ranges, _BATCH, token)
                await table.write("settle", [row["id"] for row in rows], token)
                times.append(time.perf_counter() - began)
                mark.move((row["due_at"], BEGINNING[1] if case.by_time_alone else row["id"]) for row in rows)
            ranges = from_mark(mark.place) if case.design.marked else EVERYTHING
            plan = await explain(
                table.connection, case.design.sql("claim"), *claim_arguments(ranges, _BATCH, uuid.uuid4())
            )
    part = len(times) // 6
    first, last = (part * _BATCH / sum(some) for some in (times[:part], times[-part:]))
    return first, last, plan.milliseconds, plan.buffers


@asynccontextmanager
async def _held_snapshot(url: str, design: Design) -> AsyncIterator[None]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetchval(f"select exists (table {design.schema}.messages)")
            yield
    finally:
        await connection.close()
