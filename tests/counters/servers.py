"""What each kind of server says it has done: the same numbers on every machine, for one release of the server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import asyncpg
import pytest
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from nightmail.stores.postgres import PostgresStore
from tests.counters.verbs import WAKEUPS
from tests.plans.test_postgres_plans import Plans, nodes
from tests.stores.mysql.support import run

# ------------------------------------------------------------------------------------------ Postgres


RINGS: Final = """
    create function public.pg_notify(text, text) returns void language plpgsql as $$
    begin
        raise log 'rung';
        perform pg_catalog.pg_notify($1, $2);
    end $$
"""
"""Found in place of the server's own by a session that looks into this schema first. Of those that are the same in one
transaction the server sends one, so what arrives does not tell how often a statement rings."""
RINGS_FIRST: Final = "set search_path to public, pg_catalog, pg_temp"


class PostgresMeter:
    """WAL of the whole server; pages and rows of the store's own statements, as the server explains them, and how often
    they ring; also where they run in a caller's session.

    A page that is changed for the first time since a checkpoint is in the WAL as a whole: another round counts it less.
    """

    def __init__(self, own: asyncpg.Connection[asyncpg.Record], store: PostgresStore) -> None:
        self._own = own
        self._store = store
        self._rings = 0
        self._plans: list[Plans] = []
        self._plans_of_callers: list[Plans] = []
        self._pages = 0
        self._rows = 0

    async def read(self) -> dict[str, float]:
        plans = chain.from_iterable(
            [await plans.all("nightmail_messages") for plans in (*self._plans, *self._plans_of_callers)]
        )
        for plan in plans:
            self._pages += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            self._rows += sum(_rows(node) for node in nodes(plan))
        wal = await self._own.fetchval("select pg_current_wal_insert_lsn() - '0/0'")
        return {"WAL bytes": float(wal), "pages": self._pages, "rows": self._rows, WAKEUPS: self._rings}

    async def clean(self) -> None:
        if not self._plans:
            await self._own.execute("alter table nightmail_messages set (autovacuum_enabled = off)")
            assert self._store._opened is not None
            for lane in self._store._opened.lanes:
                self._plans.append(Plans())
                await lane.run(self._plans[-1].listen)
                await lane.run(self._listen_to_rings)
        await self._own.execute("vacuum analyze nightmail_messages")

    async def listen_to_callers(self, engine: AsyncEngine) -> None:
        """Also explain what runs on the one connection that this engine has made and keeps."""
        async with engine.connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            plans, session = Plans(), SimpleNamespace(execute=driver.execute, driver=driver)
            await plans.listen(session)
            await self._own.execute(RINGS)
            await self._listen_to_rings(session)
        self._plans_of_callers.append(plans)

    async def _listen_to_rings(self, own: Any) -> None:
        await own.execute(RINGS_FIRST)
        own.driver.add_log_listener(self._note_ring)

    def _note_ring(self, _: object, entry: Any) -> None:
        self._rings += entry.message == "rung"


def _rows(node: dict[str, Any]) -> int:
    """How many rows of a table or an index this part of a plan read or wrote."""
    if "Relation Name" not in node:
        return 0
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node["Actual Rows"] + removed) * node["Actual Loops"])


# ------------------------------------------------------------------------------------------- MariaDB


class MySQLMeter:
    """Rows that the storage engine read and wrote for anyone, without those of temporary tables.

    No bytes of its log: what the server writes there in the background varies more than what a verb adds.
    To ask for the counters reads rows too, which are not counted: as many each time.
    """

    READS: Final = ("first", "key", "last", "next", "prev", "rnd", "rnd_next")
    WRITES: Final = ("write", "update", "delete")

    def __init__(self, url: str) -> None:
        self._url = url
        self._asking: dict[str, float] | None = None
        self._asked = 0

    async def read(self) -> dict[str, float]:
        if self._asking is None:
            readings = [await self._counters() for _ in range(4)]
            # The least: the server does something of its own now and then.
            self._asking = {
                name: min(after[name] - before[name] for before, after in pairwise(readings))
                for name in readings[0]
            }
        self._asked += 1
        return {
            name: value - self._asked * self._asking[name] for name, value in (await self._counters()).items()
        }

    async def _counters(self) -> dict[str, float]:
        rows = await run(self._url, "show global status like 'Handler%'")
        status = {str(row[0]): int(row[1]) for row in rows}
        return {
            "rows read": sum(status[f"Handler_read_{name}"] for name in self.READS),
            "rows written": sum(status[f"Handler_{name}"] for name in self.WRITES),
        }

    async def clean(self) -> None:
        """Nothing is left of a round but deleted rows, which the server removes when it likes."""


# --------------------------------------------------------------------------------------------- Redis


class RedisMeter:
    """Commands, inside of scripts too; wake-ups; and what goes into the append-only file."""

    OURS: Final = frozenset(
        {"eval", "evalsha", "info", "hello", "client|setinfo", "client|setname", "select"}
    )

    def __init__(self, own: Redis) -> None:
        self._own = own

    async def read(self) -> dict[str, float]:
        stats = await self._own.info("commandstats")
        persistence = await self._own.info("persistence")
        calls = {name.removeprefix("cmdstat_"): int(told["calls"]) for name, told in stats.items()}
        return {
            "commands": sum(count for name, count in calls.items() if name not in self.OURS),
            # What is to be written, too: while the server waits for a sync of the file, it writes two seconds late.
            "AOF bytes": int(persistence["aof_current_size"]) + int(persistence["aof_buffer_length"]),
            WAKEUPS: calls.get("publish", 0) + calls.get("spublish", 0),
        }

    async def clean(self) -> None:
        """Nothing is left of a round."""


# -------------------------------------------------------------------------------------------- SQLite


class SQLiteMeter:
    """Pages that went into the WAL, and steps of the virtual machine on all connections."""

    MAX_FRAME: Final = slice(16, 20)
    """In the index of the WAL: how many pages are in it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._steps = 0

    @contextmanager
    def counting_steps(self) -> Iterator[None]:
        """Connections that are opened in this block are counted."""
        real = sqlite3.connect

        def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = real(*arguments, **options)
            connection.set_progress_handler(self._step, 1)
            return connection

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite3, "connect", connect)
            yield

    def _step(self) -> int:
        self._steps += 1
        return 0

    async def read(self) -> dict[str, float]:
        index = self._file.with_name(f"{self._file.name}-shm").read_bytes()
        return {
            "pages written": int.from_bytes(index[self.MAX_FRAME], "little"),
            "steps": self._steps,
        }

    async def clean(self) -> None:
        with closing(sqlite3.connect(self._file)) as own:
            own.execute("pragma wal_checkpoint(truncate)")
