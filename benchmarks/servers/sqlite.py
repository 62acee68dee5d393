"""SQLite: files on the disk, and no server."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.servers.base import Server, copied


class SQLite(Server):
    """A file for each system."""

    name = "sqlite"

    def start(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Each file went with its block."""

    async def describe(self) -> dict[str, str]:
        return {"version": sqlite3.sqlite_version, "journal_mode": "wal", "synchronous": "full"}

    @contextmanager
    def database(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="nightmail-bench-") as directory:
            yield f"sqlite:///{Path(directory) / 'messages.db'}"

    async def multiply(self, url: str, table: str, times: int) -> None:
        await asyncio.to_thread(_multiply, url.removeprefix("sqlite:///"), table, times)


def _multiply(path: str, table: str, times: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        names = [row[1] for row in connection.execute(f"pragma table_info({table})") if row[1] != "id"]
        ((last,),) = connection.execute(f"select max(id) from {table}")  # noqa: S608 - our own names
        for number in range(2, times + 1):
            connection.execute(
                f"insert into {table} ({', '.join(names)}) "  # noqa: S608
                f"select {copied(names, number)} from {table} where id <= {last}"
            )
