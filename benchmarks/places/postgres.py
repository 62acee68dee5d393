"""Postgres, with fsync on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.places.place import Bounds, Place
from benchmarks.places.raw import BATCH, ENCODED, handle_all
from testkit.servers import Postgres as Server


@contextmanager
def postgres() -> Iterator[Place]:
    """A private server."""
    with Server(durable=True) as server:
        server.start()
        yield Postgres(server.create_database())


class Postgres(Place):
    """A database of its own."""

    name = "postgres"
    bounds = Bounds(share=60, times=1.35, batch_share=60, round_trips=0.05, pick_up_ms=10, lateness_ms=15)

    async def round_trips(self) -> int:
        # Statistics of other sessions arrive late; this asks for them to be written out first.
        return await self._ask(
            "select xact_commit from pg_stat_database where datname = current_database()",
            first="select pg_stat_force_next_flush()",
        )

    async def connections(self) -> int:
        return await self._ask(
            "select count(*) from pg_stat_activity "
            "where datname = current_database() and application_name like 'nightmail%'"
        )

    @asynccontextmanager
    async def transactions(self) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.url.replace("postgresql://", "postgresql+asyncpg://"))
        yield engine
        await engine.dispose()

    async def raw_rate(self, count: int) -> float:
        async with self._connected() as connection:
            await connection.execute(
                "create table raw "
                "(id bigserial primary key, due timestamptz default now(), lease timestamptz, body bytea)"
            )
            await connection.execute("create index on raw (due, id)")
            await connection.execute(
                "insert into raw (body) select $1 from generate_series(1, $2)", ENCODED, count
            )
            begun = time.perf_counter()
            while rows := await connection.fetch(
                "update raw set lease = now() + interval '1 minute' where id = any(array("
                "select id from raw where due <= now() and lease is null order by due, id limit $1 "
                "for update skip locked)) "
                "returning id, body",
                BATCH,
            ):
                await handle_all(row["body"] for row in rows)
                await connection.execute("delete from raw where id = any($1)", [row["id"] for row in rows])
            seconds = time.perf_counter() - begun
            await connection.execute("drop table raw")
            return count / seconds

    async def _ask(self, question: str, *, first: str | None = None) -> int:
        async with self._connected() as connection:
            if first is not None:
                await connection.execute(first)
            return int(await connection.fetchval(question))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()
