"""Postgres, with fsync on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg

from benchmarks.servers.base import Server, copied, used_by
from testkit.servers.postgres import Postgres as Private

SETTINGS: Final[dict[str, str | int]] = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
SHOWN: Final = ("fsync", "synchronous_commit", "shared_buffers", "max_wal_size", "autovacuum")


class Postgres(Server):
    """A database for each system."""

    name = "postgres"

    def __init__(self) -> None:
        self._server = Private(durable=True, settings=SETTINGS)

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def processor_seconds(self) -> float:
        return used_by(self._server.processes)

    async def describe(self) -> dict[str, str]:
        async with _connected(self._server.url) as connection:
            shown = {name: str(await connection.fetchval(f"show {name}")) for name in SHOWN}
            return {"version": str(await connection.fetchval("show server_version")), **shown}

    @contextmanager
    def database(self) -> Iterator[str]:
        with self._server.fresh_database() as url:
            yield url

    async def tidy(self, url: str) -> None:
        async with _connected(url) as connection:
            await connection.execute("vacuum analyze")
            await connection.execute("checkpoint")

    async def requests(self, url: str) -> int:
        async with _connected(url) as connection:
            # Statistics of other sessions arrive late; this asks for them to be written out first.
            await connection.execute("select pg_stat_force_next_flush()")
            return int(
                await connection.fetchval(
                    "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
                )
            )

    async def connections(self, url: str) -> int:
        async with _connected(url) as connection:
            return int(
                await connection.fetchval(
                    "select count(*) from pg_stat_activity "
                    "where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
                )
            )

    @asynccontextmanager
    async def held_snapshot(self, url: str) -> AsyncIterator[None]:
        async with _connected(url) as connection, connection.transaction(isolation="repeatable_read"):
            await connection.fetchval("select count(*) from pg_class")
            yield

    async def multiply(self, url: str, table: str, times: int) -> None:
        async with _connected(url) as connection:
            found = await connection.fetch(
                "select quote_ident(column_name) as name from information_schema.columns "
                "where table_name = $1 and is_identity = 'NO' and is_generated = 'NEVER' and column_name <> 'id'",
                table,
            )
            names = [row["name"] for row in found]
            await connection.execute(
                f"insert into {table} ({', '.join(names)}) "  # noqa: S608 - our own names
                f"select {copied(names, 'n::text')} from {table} cross join generate_series(2, {times}) as n"
            )

    async def dead_rows(self, url: str, table: str) -> int:
        async with _connected(url) as connection:
            return int(
                await connection.fetchval(
                    "select n_dead_tup from pg_stat_user_tables where relname = $1", table
                )
            )


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url, command_timeout=1800)
    try:
        yield connection
    finally:
        await connection.close()
