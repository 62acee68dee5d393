"""A table full of messages, a worker that drains it, and what the server counted meanwhile."""

import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import asyncpg

from benchmarks.table_designs.designs import Design

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Place: TypeAlias = tuple[datetime, int]
"""A message's position in its level: its due time and its id."""

T = TypeVar("T")

QUEUE = "orders"
_LEASE = timedelta(minutes=10)
MILLISECOND = timedelta(milliseconds=1)
BEGINNING: Place = (datetime.min.replace(tzinfo=UTC), 0)
END: Place = (datetime.max.replace(tzinfo=UTC), 0)
LEVELS = range(9, -1, -1)

_BODY = bytes(range(150))
_HEADERS = '{"content-type": "application/json", "correlation_id": "9f2c1"}'
_FULL_LOOK_SECONDS = 1.0

# What the engine gives its own connections: with them no plan made for a small table outlives its growth.
ENGINE_SETTINGS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}


@dataclass(frozen=True, slots=True)
class Range:
    """A part of one level: from a place on, up to another."""

    level: int
    start: Place = BEGINNING
    end: Place = END


def _arrays(ranges: Iterable[Range]) -> list[list[Any]]:
    """The ranges as the claim takes them: one array per column."""
    rows = [(QUEUE, r.level, *r.start, *r.end) for r in ranges]
    return [list(column) for column in zip(*rows, strict=True)]


def claim_arguments(ranges: Iterable[Range], limit: int, token: uuid.UUID) -> list[Any]:
    """What a claim is given: the ranges, how many, under which token, for how long, and the server's own clock."""
    return [*_arrays(ranges), limit, token, _LEASE, None]


EVERYTHING = [Range(level) for level in LEVELS]


def from_mark(mark: Place) -> list[Range]:
    """Level 0 from the mark on, after the levels above it; what lies behind the mark comes last."""
    return [*(Range(level) for level in LEVELS[:-1]), Range(0, start=mark), Range(0, end=mark)]


@dataclass(slots=True)
class Mark:
    """Where the next claim starts: the smallest place of the last batch, or the beginning once a second."""

    place: Place = BEGINNING
    looked_at: float = 0.0

    def ranges(self) -> list[Range]:
        """What the next claim looks through."""
        if time.monotonic() - self.looked_at >= _FULL_LOOK_SECONDS:
            self.looked_at = time.monotonic()
            return EVERYTHING
        return from_mark(self.place)

    def move(self, places: Iterable[Place]) -> None:
        """The last claim found these."""
        self.place = min(places, default=self.place)


@dataclass(slots=True)
class Times:
    """How long some statements took, by the clock and by the server's processor."""

    elapsed: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)

    async def of(self, table: "Table", statement: Awaitable[T]) -> T:
        """Run one more."""
        computed, began = table.processor_time(), time.perf_counter()
        result = await statement
        self.elapsed.append(time.perf_counter() - began)
        self.computed.append(table.processor_time() - computed)
        return result


@dataclass(frozen=True, slots=True)
class Counters:
    """What the server has counted so far for one table."""

    wal: int
    updated: int
    hot: int
    dead: int


class Table:
    """The table of one design, through one connection."""

    def __init__(self, design: Design, connection: Connection) -> None:
        self.design = design
        self.connection = connection

    async def create(self) -> None:
        schema, fillfactor = self.design.schema, self.design.fillfactor
        await self.connection.execute(f"drop schema if exists {schema} cascade; create schema {schema}")
        await self.connection.execute(self.design.create())
        # Off: what autovacuum removes, and when, is not under our control while we count.
        await self.connection.execute(
            f"alter table messages set (fillfactor = {fillfactor}, autovacuum_enabled = off)"
        )

    async def publish(self, due_at: list[datetime]) -> None:
        """Store messages with these due times, in one statement, as the engine does."""
        count = len(due_at)
        await self.connection.fetch(
            self.design.sql("insert"), QUEUE, due_at, [_BODY] * count, [_HEADERS] * count
        )

    async def fill(
        self,
        count: int,
        *,
        start: datetime,
        step: timedelta = MILLISECOND,
        keyed: bool = False,
        body: int = len(_BODY),
    ) -> None:
        """Store many messages, due one `step` after the other, each with an ordering key of its own if `keyed`."""
        await self.connection.fetch(self.design.sql("fill"), QUEUE, count, start, step, keyed, body)

    async def claim(self, ranges: Iterable[Range], limit: int, token: uuid.UUID) -> list[asyncpg.Record]:
        return await self.connection.fetch(self.design.sql("claim"), *claim_arguments(ranges, limit, token))

    async def write(self, statement: str, ids: Iterable[int], token: uuid.UUID) -> int:
        """Settle, retry or extend what was claimed with this token; how many still had it."""
        sorted_ids = sorted(ids)
        written = await self.connection.fetch(
            self.design.sql(statement), sorted_ids, [token] * len(sorted_ids)
        )
        return len(written)

    async def drain(self, messages: int, batch: int = 500) -> None:
        """Claim and settle this many."""
        for _ in range(messages // batch):
            token = uuid.uuid4()
            rows = await self.claim(EVERYTHING, batch, token)
            await self.write("settle", [row["id"] for row in rows], token)

    async def counters(self) -> Counters:
        await self.connection.execute("select pg_stat_force_next_flush()")
        row = await self.connection.fetchrow(
            """
            select pg_current_wal_insert_lsn() - '0/0'::pg_lsn as wal, n_tup_upd as updated,
                   n_tup_hot_upd as hot, n_dead_tup as dead
            from pg_stat_user_tables where relid = 'messages'::regclass
            """
        )
        assert row is not None
        return Counters(**{name: int(value) for name, value in row.items()})

    def processor_time(self) -> float:
        """Processor seconds that the server has used for this connection; nan if it runs elsewhere.

        Says more than the clock where other programs compete for the processor.
        """
        process = Path("/proc", str(self.connection.get_server_pid()))
        try:
            ours = (process / "comm").read_text() == "postgres\n"
            return int((process / "schedstat").read_text().split()[0]) / 1e9 if ours else math.nan
        except OSError:
            return math.nan

    async def wal(self) -> int:
        return int(await self.connection.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    async def sizes(self) -> tuple[int, int]:
        """Bytes of the table, and of its indexes."""
        row = await self.connection.fetchrow(
            "select pg_relation_size('messages'), pg_indexes_size('messages')"
        )
        assert row is not None
        return int(row[0]), int(row[1])


@asynccontextmanager
async def open_table(url: str, design: Design, **settings: str) -> AsyncIterator[Table]:
    """The design's table, new and empty. `settings` are the connection's, besides those of the engine."""
    async with connect(url, design, **settings) as connection:
        table = Table(design, connection)
        await table.create()
        yield table


@asynccontextmanager
async def connect(url: str, design: Design, **settings: str) -> AsyncIterator[Connection]:
    """A connection for which `messages` is this design's table."""
    connection = await asyncpg.connect(
        url, server_settings={"search_path": design.schema, **ENGINE_SETTINGS, **settings}
    )
    try:
        yield connection
    finally:
        await connection.close()
