"""By hand on sqlite3. It blocks the event loop: there is no faster way, and no worse neighbour."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.adapters.by_hand import BATCH, ByHand
from benchmarks.adapters.harness import Send, Unsupported, serve

TABLE: Final = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS raw (id INTEGER PRIMARY KEY, due REAL, lease REAL, body BLOB);
    CREATE INDEX IF NOT EXISTS raw_due ON raw (due, id);
"""
LASTING, LEASING = "PRAGMA synchronous = FULL", "PRAGMA synchronous = NORMAL"
"""A lease that a power failure undoes is handled again: ours claims so too."""
INSERT: Final = "INSERT INTO raw (due, body) VALUES (0, ?)"
LEASE: Final = """
    UPDATE raw SET lease = unixepoch() + 60 WHERE id IN
        (SELECT id FROM raw WHERE due <= unixepoch() AND lease IS NULL ORDER BY due, id LIMIT ?)
    RETURNING id, body
"""


class ByHandSQLite(ByHand):
    """One connection, in the event loop's thread."""

    async def open(self, url: str, profile: str) -> None:
        self._connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        self._connection.executescript(TABLE)
        self._connection.execute(LASTING)

    @asynccontextmanager
    async def publisher(self, how: str) -> AsyncIterator[Send]:
        if how == "session":
            raise Unsupported("publishing in an AsyncSession")

        async def send(body: dict[str, Any], queue: str, due: float | None, timer: str | None) -> None:
            await self.insert([json.dumps(body).encode()])
            await asyncio.sleep(0)  # Each of several publishers has its turn.

        yield send

    async def insert(self, bodies: Sequence[bytes]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(INSERT, [(body,) for body in bodies])
        self._connection.execute("COMMIT")

    async def lease(self) -> Sequence[tuple[Any, bytes]]:
        self._connection.execute(LEASING)
        rows = self._connection.execute(LEASE, (BATCH,)).fetchall()
        self._connection.execute(LASTING)
        return rows

    async def delete(self, ids: Sequence[Any]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("DELETE FROM raw WHERE id = ?", [(id_,) for id_ in ids])
        self._connection.execute("COMMIT")
        await asyncio.sleep(0)

    async def close(self) -> None:
        await self.stop()
        self._connection.close()


if __name__ == "__main__":
    serve(ByHandSQLite())
