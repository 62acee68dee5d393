"""What the planner makes of the statements when its statistics are wrong.

A table of messages is full, then empty, then full again, and ANALYZE comes when it likes. What it saw last may have
nothing to do with what is there now, so a statement is good only if no statistics can spoil its plan.
"""

import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from benchmarks.table_designs.designs import A, C50, Design
from benchmarks.table_designs.explain import Plan, prepared
from benchmarks.table_designs.load import EVERYTHING, LEASE, Table, arrays, connect, open_table
from benchmarks.table_designs.report import print_table

_BATCH = 500
_DUE = 2_000
_FEW = 30
# As a driver connects, but with a plan that is kept: what a busy worker has after five claims, or for good.
_AS_IT_COMES = {"enable_seqscan": "on", "enable_bitmapscan": "on"}
_UNWANTED = {"Seq Scan", "Bitmap Heap Scan", "Sort", "Incremental Sort", "Hash Join", "Merge Join"}


@dataclass(frozen=True, slots=True)
class Case:
    """A statement, on a design's table."""

    title: str
    statement: str
    design: Design = C50
    claims: bool = False
    before: str = ""
    """Done to the new table first."""


def _instead(statement: str, old: str, new: str) -> str:
    assert old in statement, old
    return statement.replace(old, new)


_CLAIM, _SETTLE = C50.sql("claim"), C50.sql("settle")
_BY_ARRAY = "where m.id = any(array(select p.id from picked p))"
_HEAD = (
    "(select h.id from messages h where h.queue = m.queue and h.head_key = m.ordering_key limit 1) is null"
)
_NO_HEAD = "not exists (select from messages h where h.queue = m.queue and h.head_key = m.ordering_key)"
_JOINED = """
delete from messages m using unnest($1::bigint[], $2::uuid[]) as s(id, token)
where m.id = s.id and m.token = s.token
returning m.id
"""
_WITHOUT_PREDICATE = """
drop index messages_claim;
create index messages_claim on messages (queue, priority, due_at, id)
"""

CASES = (
    Case("(c) claim", _CLAIM, claims=True),
    Case("(c) claim, index without predicate", _CLAIM, claims=True, before=_WITHOUT_PREDICATE),
    Case("(c) claim, `not exists` head", _instead(_CLAIM, _HEAD, _NO_HEAD), claims=True),
    Case(
        "(c) claim, joined by id", _instead(_CLAIM, _BY_ARRAY, "from picked p where m.id = p.id"), claims=True
    ),
    Case("(c) settle", _SETTLE),
    Case("(c) settle, index without predicate", _SETTLE, before=_WITHOUT_PREDICATE),
    Case("(c) settle, joined", _JOINED),
    Case("(a) claim", A.sql("claim"), design=A, claims=True),
    Case("(a) settle", A.sql("settle"), design=A),
    Case("(a) settle, joined", _JOINED, design=A),
)

Step = Callable[[Table, int], Awaitable[None]]


async def _fill(table: Table, future: int) -> None:
    now = datetime.now(UTC)
    await table.fill(_DUE, start=now - timedelta(hours=1), keyed=True)
    await table.fill(future, start=now + timedelta(days=1))


async def _analyze(table: Table, _: int) -> None:
    await table.connection.execute("analyze messages")


async def _drain(table: Table, _: int) -> None:
    await table.connection.execute("delete from messages")


async def _add_few(table: Table, _: int) -> None:
    await table.fill(_FEW, start=datetime.now(UTC) - timedelta(hours=2), keyed=True)


# How the table came to be as it is when the statement is planned, and what happened to it since.
STATES: dict[str, tuple[tuple[Step, ...], tuple[Step, ...]]] = {
    "never analyzed": ((_fill,), ()),
    "ANALYZE saw it new": ((_analyze, _fill), ()),
    "ANALYZE saw it drained": ((_fill, _drain, _analyze, _fill), ()),
    "ANALYZE saw no lease": ((_fill, _analyze), ()),
    "planned at 30 rows": ((_add_few, _analyze), (_fill,)),
}


async def run(url: str, *, future: int) -> None:
    """Run every case in every state, with the engine's settings and without."""
    for title, settings in (("with the engine's settings", {}), ("as the driver connects", _AS_IT_COMES)):
        rows = []
        for case in CASES:
            plans = [await _plan(url, case, state, settings, future) for state in STATES]
            rows.append([case.title, *map(_cell, plans)])
        print_table(
            f"Plans, batch of {_BATCH}, {_DUE:,} due and {future:,} future rows, {title}: milliseconds, buffers",
            ["statement", *STATES],
            rows,
        )


async def _plan(url: str, case: Case, state: str, settings: dict[str, str], future: int) -> Plan:
    """The plan that the case ends up with in this state."""
    planned, since = STATES[state]
    async with AsyncExitStack() as stack:
        table = await stack.enter_async_context(open_table(url, case.design))
        if case.before:
            await table.connection.execute(case.before)
        connection = await stack.enter_async_context(connect(url, case.design, **settings))
        statement = await stack.enter_async_context(prepared(connection, case.statement))
        for step in planned:
            await step(table, future)
        plan = await statement.run(*await _arguments(case, table))
        for step in since:
            await step(table, future)
            plan = await statement.run(*await _arguments(case, table))
        return plan


async def _arguments(case: Case, table: Table) -> list[object]:
    token = uuid.uuid4()
    if case.claims:
        return [*arrays(EVERYTHING), _BATCH, token, LEASE]
    rows = await table.claim(EVERYTHING, _BATCH, token)
    return [sorted(row["id"] for row in rows), [token] * len(rows)]


def _cell(plan: Plan) -> str:
    unwanted = sorted({node.kind for node in plan.nodes} & _UNWANTED)
    return f"{plan.milliseconds:,.1f}, {plan.buffers:,}" + "".join(f" **{kind}**" for kind in unwanted)
