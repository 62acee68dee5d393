"""SQLite, in a file of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.places.place import Bounds, Place
from benchmarks.places.raw import BATCH, ENCODED, handle_all


@contextmanager
def sqlite() -> Iterator[Place]:
    """A file, removed at the end."""
    with tempfile.TemporaryDirectory() as directory:
        yield SQLite(f"sqlite:///{Path(directory) / 'messages.db'}")


class SQLite(Place):
    """A file."""

    name = "sqlite"
    # No share of a hand-written loop: that one waits for no server and blocks the event loop for everything else.
    bounds = Bounds(share=60, batch_share=None, round_trips=None, pick_up_ms=None, lateness_ms=15)

    @asynccontextmanager
    async def transactions(self) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(self.url.replace("sqlite://", "sqlite+aiosqlite://"))
        yield engine
        await engine.dispose()

    async def raw_rate(self, count: int) -> float:
        with closing(
            sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        ) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("CREATE TABLE raw (id INTEGER PRIMARY KEY, due REAL, lease REAL, body BLOB)")
            connection.execute("CREATE INDEX raw_due ON raw (due, id)")
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO raw (due, body) VALUES (0, ?)", [(ENCODED,)] * count)
            connection.execute("COMMIT")
            begun = time.perf_counter()
            while rows := connection.execute(
                "UPDATE raw SET lease = unixepoch() + 60 WHERE id IN "
                "(SELECT id FROM raw WHERE due <= unixepoch() AND lease IS NULL ORDER BY due, id LIMIT ?) "
                "RETURNING id, body",
                (BATCH,),
            ).fetchall():
                await handle_all(body for _, body in rows)
                connection.execute("BEGIN")
                connection.executemany("DELETE FROM raw WHERE id = ?", [(id_,) for id_, _ in rows])
                connection.execute("COMMIT")
                await asyncio.sleep(0)
            seconds = time.perf_counter() - begun
            connection.execute("DROP TABLE raw")
            return count / seconds
