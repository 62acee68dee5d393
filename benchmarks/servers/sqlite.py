"""SQLite: files on the disk, and no server."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.servers.base import Server


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
