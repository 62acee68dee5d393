"""Where a scenario runs: a fresh store of each kind, and what its server can tell of itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from testkit.servers import Postgres


@dataclass(frozen=True)
class Place:
    """An empty store."""

    name: str
    url: str

    async def transactions(self) -> int | None:
        """How many transactions the server has committed so far; `None` where there is no server to ask."""
        if self.name != "postgres":
            return None
        connection = await asyncpg.connect(self.url)
        try:
            # Statistics of other sessions arrive late; this asks for them to be written out first.
            await connection.execute("select pg_stat_force_next_flush()")
            return int(
                await connection.fetchval(
                    "select xact_commit from pg_stat_database where datname = current_database()"
                )
            )
        finally:
            await connection.close()

    async def connections(self) -> int | None:
        """How many connections of ours the server has; `None` where there is no server to ask."""
        if self.name != "postgres":
            return None
        connection = await asyncpg.connect(self.url)
        try:
            return int(
                await connection.fetchval(
                    "select count(*) from pg_stat_activity "
                    "where datname = current_database() and application_name like 'nightmail%'"
                )
            )
        finally:
            await connection.close()


@contextmanager
def places(*names: str) -> Iterator[list[Place]]:
    """A place of each kind, and their servers for as long as the block lasts. Durable: a commit costs what it costs."""
    with tempfile.TemporaryDirectory() as directory:
        found = [Place("sqlite", f"sqlite:///{Path(directory) / 'messages.db'}")] if "sqlite" in names else []
        if "postgres" not in names:
            yield found
            return
        with Postgres(durable=True) as server:
            server.start()
            yield [*found, Place("postgres", server.create_database())]
