"""What the planner makes of the statements when its statistics are wrong.

A table of messages is full, then empty, then full again, and ANALYZE runs at any time. What it saw last may have
nothing to do with what is there now, so a statement is good only if no statistics can spoil its plan.
"""

import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg

from benchmarks.table_designs.designs import C50, A, Design
from benchmarks.table_designs.explain import Plan, Prepared, prepared
from benchmarks.table_designs.load import EVERYTHING, Table, claim_arguments, connect, open_table
from benchmarks.table_designs.report import print_table

_BATCH = 500
_FEW = 30
_LEASED = 5_000
_DUE = _LEASED + 3 * _BATCH
_UNWANTED = {"Seq Scan", "Bitmap Heap Scan", "Sort", "Incremental Sort", "Hash Join", "Merge Join"}


@dataclass(frozen=True, slots=True)
class Shape:
    """A table, and what is run on it."""

    design: Design
    claims: dict[str, str]
    settles: dict[str, str]
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

SHAPES = (
    Shape(
        C50,
        claims={
            "(c) claim": _CLAIM,
            "(c) claim, joined by id": _instead(_CLAIM, _BY_ARRAY, "from picked p where m.id = p.id"),
            "(c) claim, `not exists` head": _instead(_CLAIM, _HEAD, _NO_HEAD),
        },
        settles={"(c) settle": _SETTLE, "(c) settle, joined": _JOINED},
    ),
    Shape(
        C50,
        claims={"(c) claim, index without predicate": _CLAIM},
        settles={"(c) settle, index without predicate": _SETTLE},
        before="""
            drop index messages_claim;
            create index messages_claim on messages (queue, priority, due_at, id)
        """,
    ),
    Shape(
        C50,
        claims={
            "(c) claim, line index on `id`": _instead(_CLAIM, "s.id + 0 < m.id", "s.id < m.id"),
        },
        settles={},
        before="""
            drop index messages_line;
            create index messages_line on messages (queue, ordering_key, id) where ordering_key is not null
        """,
    ),
    Shape(
        A,
        claims={"(a) claim": A.sql("claim")},
        settles={"(a) settle": _SETTLE, "(a) settle, joined": _JOINED},
    ),
)

# The second changes nothing else: the plan is still made once and kept, which a server left to itself may not do.
CONNECTIONS = {
    "with the engine's settings": {},
    "with sequential and bitmap scans allowed": {"enable_seqscan": "on", "enable_bitmapscan": "on"},
}

Step = Callable[[Table, int], Awaitable[object]]


async def _fill(table: Table, future: int) -> None:
    now = datetime.now(UTC)
    await table.fill(_DUE, start=now - timedelta(hours=1), keyed=True)
    await table.fill(future, start=now + timedelta(days=1))


async def _fill_a_little(table: Table, _: int) -> None:
    await table.fill(_FEW, start=datetime.now(UTC) - timedelta(hours=2), keyed=True)


async def _analyze(table: Table, _: int) -> None:
    await table.connection.execute("analyze messages")


async def _empty(table: Table, _: int) -> None:
    await table.connection.execute("delete from messages")


async def _lease(table: Table, _: int) -> None:
    await table.claim(EVERYTHING, _LEASED, uuid.uuid4())


# What happened to the table before the statements were planned, and what happened since.
STATES: dict[str, tuple[tuple[Step, ...], tuple[Step, ...]]] = {
    "never analyzed": ((_fill,), ()),
    "ANALYZE saw it new": ((_analyze, _fill), ()),
    "ANALYZE saw it drained": ((_fill, _empty, _analyze, _fill), ()),
    "ANALYZE saw no lease, 5,000 since": ((_fill, _analyze), (_lease,)),
    "planned at 30 rows, grown since": ((_fill_a_little, _analyze), (_fill,)),
}


async def run(url: str, *, future: int, patience: int) -> None:
    """Run every statement in every state, for `patience` seconds at most, on both kinds of connection."""
    cells: dict[tuple[str, str], list[str]] = {}
    for state in STATES:
        for shape in SHAPES:
            for key, cell in (await _plans(url, shape, state, future, patience)).items():
                cells.setdefault(key, []).append(cell)
    for connection in CONNECTIONS:
        print_table(
            f"Plans {connection}, batch of {_BATCH}, {_DUE:,} due and {future:,} future rows: milliseconds, buffers",
            ["statement", *STATES],
            [[title, *found] for (title, where), found in cells.items() if where == connection],
        )


async def _plans(
    url: str, shape: Shape, state: str, future: int, patience: int
) -> dict[tuple[str, str], str]:
    """What each statement costs in this state, by its title and its connection."""
    planned, since = STATES[state]
    async with AsyncExitStack() as stack:
        table = await stack.enter_async_context(open_table(url, shape.design))
        if shape.before:
            await table.connection.execute(shape.before)
        statements: dict[tuple[str, str], Prepared] = {}
        for where, settings in CONNECTIONS.items():
            connection = await stack.enter_async_context(
                connect(url, shape.design, statement_timeout=f"{patience}s", **settings)
            )
            for title, text in (shape.claims | shape.settles).items():
                statements[title, where] = await stack.enter_async_context(prepared(connection, text))
        for step in planned:
            await step(table, future)
        cells = await _run_all(shape, table, statements)
        for step in since:
            await step(table, future)
            cells = await _run_all(shape, table, statements)
        return cells


async def _run_all(
    shape: Shape, table: Table, statements: dict[tuple[str, str], Prepared]
) -> dict[tuple[str, str], str]:
    token = uuid.uuid4()
    rows = await table.claim(EVERYTHING, _BATCH, token)
    settle = [sorted(row["id"] for row in rows), [token] * len(rows)]
    cells = {}
    for (title, where), statement in statements.items():
        claim = claim_arguments(EVERYTHING, _BATCH, uuid.uuid4())
        try:
            cells[title, where] = _cell(await statement.run(*(claim if title in shape.claims else settle)))
        except asyncpg.QueryCanceledError:
            cells[title, where] = "**too long**"
    return cells


def _cell(plan: Plan) -> str:
    unwanted = sorted({node.kind for node in plan.nodes} & _UNWANTED)
    return f"{plan.milliseconds:,.1f}, {plan.buffers:,}" + "".join(f" **{kind}**" for kind in unwanted)
