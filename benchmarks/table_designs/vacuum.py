"""What vacuum has to keep up with: looks over what is dead, many rows that stay, and giving pages back."""

import asyncio
import time
import uuid
from datetime import UTC, datetime, timedelta

from benchmarks.table_designs.designs import C50
from benchmarks.table_designs.explain import prepared
from benchmarks.table_designs.load import EVERYTHING, Connection, Table, claim_arguments, connect, open_table
from benchmarks.table_designs.report import print_table

_DEAD = (10_000, 50_000, 200_000)
_AUTOVACUUM = "set vacuum_cost_delay = '2ms'"


async def run(url: str, *, future: int, dead: int, rounds: int) -> None:
    """Print what up to `dead` dead rows cost next to `future` ones."""
    await _dead_rows(url, future, [count for count in _DEAD if count <= dead])
    await _truncation(url, dead, rounds)


async def _dead_rows(url: str, future: int, counts: list[int]) -> None:
    rows = []
    async with open_table(url, C50) as table:
        await table.fill(future, start=datetime.now(UTC) + timedelta(days=1))
        await table.connection.execute("vacuum analyze messages")
        for pace, before in (
            ("at full speed", "reset vacuum_cost_delay"),
            ("at autovacuum's pace", _AUTOVACUUM),
        ):
            for count in counts:
                await table.fill(count, start=datetime.now(UTC) - timedelta(hours=1))
                await table.drain(count)
                look = await _look(table)
                await table.connection.execute(before)
                began = time.perf_counter()
                await table.connection.execute("vacuum messages")
                seconds = time.perf_counter() - began
                rows.append([f"{count:,}", look, pace, f"{seconds:.1f}", await _look(table)])
    print_table(
        f"Dead rows beside {future:,} future ones",
        ["dead", "full look: ms, buffers", "vacuum", "seconds", "full look after it"],
        rows,
    )


async def _look(table: Table) -> str:
    """A look that finds nothing, the second of its kind: the first leaves marks in the index that spare it visits."""
    async with prepared(table.connection, table.design.sql("claim")) as claim:
        await claim.run(*claim_arguments(EVERYTHING, 1, uuid.uuid4()))
        plan = await claim.run(*claim_arguments(EVERYTHING, 1, uuid.uuid4()))
    return f"{plan.milliseconds:.1f}, {plan.buffers:,}"


async def _truncation(url: str, messages: int, rounds: int) -> None:
    """How long does a worker wait while VACUUM gives back the empty pages at the end?"""
    rows = []
    for truncate in ("true", "false"):
        longest = left = 0.0
        for _ in range(rounds):
            async with open_table(url, C50) as table, connect(url, C50) as worker:
                await table.fill(messages, start=datetime.now(UTC) - timedelta(hours=1))
                await table.connection.execute("delete from messages")
                await _look(table)
                done = asyncio.Event()
                looking = asyncio.create_task(_longest_look(worker, done))
                await table.connection.execute(f"vacuum (truncate {truncate}) messages")
                done.set()
                longest = max(longest, await looking)
                left = (await table.sizes())[0] / 2**20
        rows.append([truncate, f"{longest:.0f}", f"{left:,.0f}"])
    print_table(
        f"Looks of a worker during VACUUM of a table from which {messages:,} messages were deleted",
        ["truncate", "longest look, ms", "table afterwards, MB"],
        rows,
    )


async def _longest_look(connection: Connection, done: asyncio.Event) -> float:
    """Milliseconds of the longest of the looks made until then."""
    longest = 0.0
    while not done.is_set():
        began = time.perf_counter()
        await connection.fetch(C50.sql("claim"), *claim_arguments(EVERYTHING, 10, uuid.uuid4()))
        longest = max(longest, time.perf_counter() - began)
        await asyncio.sleep(0.001)
    return longest * 1e3
