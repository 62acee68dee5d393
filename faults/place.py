"""Where a scenario runs: a store, and the server behind it, if there is one."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from faults.clock import Clock, library
from faults.workload.config import KINDS, Kind
from testkit.servers.base import Server
from testkit.servers.errors import ServerUnavailable
from testkit.servers.mariadb import MariaDB
from testkit.servers.pgbouncer import PgBouncer
from testkit.servers.postgres import Postgres
from testkit.servers.redis import Redis

SERVER_CONNECTIONS: Final = 100
"""Few, so that the limit can be reached; more than any scenario needs."""
STORES: Final = ("sqlite", "postgres", "mariadb", "redis")
POOLED: Final = "pgbouncer"
"""Postgres through PgBouncer in transaction mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A small file system of its own."""

    path: Path

    @property
    def ballast(self) -> Path:
        return self.path / "ballast"

    def fill(self) -> None:
        """Leave not a byte free."""
        with self.ballast.open("wb") as file:
            for size in (1 << 20, 1 << 12):
                self._write(file.fileno(), bytes(size))

    def _write(self, file: int, block: bytes) -> None:
        try:
            while os.write(file, block):
                pass
        except OSError:
            return

    def free(self) -> None:
        """Give it all back."""
        self.ballast.unlink()


@dataclass(frozen=True, slots=True)
class Place:
    """An empty store."""

    store: str
    url: str
    server: Server | None = None
    clock: Clock | None = None
    """The store's clock, where it can be moved."""
    disk: Disk | None = None
    """What its files are on, where it can be filled."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What is published here."""
        return KINDS

    def url_for(self, process: int) -> str:
        """The URL for this process, by its number."""
        return self.url

    @property
    def address(self) -> tuple[str, int]:
        """Where its server listens."""
        parts = urlsplit(self.url)
        assert parts.port is not None
        return parts.hostname or "127.0.0.1", parts.port

    def through(self, port: int) -> str:
        """Its URL for those who go through a proxy on this port."""
        parts = urlsplit(self.url)
        user = f"{parts.username}@" if parts.username else ""
        return parts._replace(netloc=f"{user}127.0.0.1:{port}").geturl()

    def damage(self) -> str:
        """What is wrong with the file of an SQLite store; nothing, if all is well."""
        if self.store != "sqlite":
            return ""
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"))) as connection:
            said = "; ".join(row[0] for row in connection.execute("PRAGMA integrity_check"))
        return "" if said == "ok" else said

    async def lose_power(self) -> None:
        """kill -9 of the server; what it had not synced is gone; and a new start on what is left."""
        assert isinstance(self.server, Redis)
        await asyncio.to_thread(self.server.kill)
        for file in self.server.data.rglob("*.incr.aof"):
            note = file.with_name(f"{file.name}.synced")
            os.truncate(file, int.from_bytes(note.read_bytes(), sys.byteorder) if note.exists() else 0)
        await asyncio.to_thread(self.server.start)

    async def crash(self) -> None:
        """kill -9 of the server, and a new start on its files."""
        assert self.server is not None
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)


@contextmanager
def fresh(store: str, directory: Path) -> Iterator[Place]:
    """An empty store on a server that is as careful as in production."""
    match store:
        case "sqlite":
            yield Place(store, f"sqlite:///{directory / 'messages.db'}")
        case "pgbouncer":
            with _kept("postgres") as postgres, PgBouncer(postgres.url) as pgbouncer:
                assert isinstance(postgres, Postgres)
                yield Place(store, pgbouncer.through(postgres.create_database()), postgres)
        case _:
            with _kept(store) as server:
                if isinstance(server, Redis):
                    server.execute_command("FLUSHALL")
                yield Place(store, _database(server), server)


_keeping: Final[dict[str, tuple[Server, ExitStack]]] = {}


@contextmanager
def kept_servers() -> Iterator[None]:
    """Within the block a server is started once, and each run on it gets a database of its own."""
    try:
        yield
    finally:
        while _keeping:
            _, (_, stack) = _keeping.popitem()
            stack.close()


@contextmanager
def _kept(store: str) -> Iterator[Server]:
    """The server of the runs before, or a new one; after a run that failed there will be another."""
    if store not in _keeping:
        stack = ExitStack()
        _keeping[store] = stack.enter_context(_server(store)), stack
    server, stack = _keeping[store]
    try:
        yield server
    except BaseException:
        _keeping.pop(store, None)
        stack.close()
        raise


@contextmanager
def with_movable_clock(store: str, directory: Path) -> Iterator[Place]:
    """The same, and the store's clock can be moved: that of the server, or of all processes that share a file."""
    clock = Clock(directory, "store")
    if store == "sqlite":
        yield Place(store, f"sqlite:///{directory / 'messages.db'}", clock=clock)
        return
    with _server(store, environment=clock.environment) as server:
        yield Place(store, _database(server), server, clock=clock)


UNSYNCED: Final = ("postgres-unsynced", "mariadb-unsynced", "redis-unsynced")
"""Servers that answer a write before they have given it to the system: kill -9 loses it. Redis without an append-only
file never gives it."""
_UNSYNCED: Final[dict[str, dict[str, Any]]] = {
    "postgres-unsynced": {"settings": {"synchronous_commit": "off"}},
    "mariadb-unsynced": {"settings": {"innodb-flush-log-at-trx-commit": 0}},
    "redis-unsynced": {"options": {"appendonly": "no"}},
}
EVERYSEC: Final = "redis-everysec"
"""Redis that syncs its file once a second, and answers before."""


@contextmanager
def that_can_lose_power(store: str, directory: Path) -> Iterator[Place]:
    """A Redis that notes how much of its file is on the disk for sure."""
    options = {"appendfsync": "everysec"} if store == EVERYSEC else {}
    environment = {"LD_PRELOAD": str(library("power", directory))}
    with _server("redis", environment=environment, options=options) as server:
        yield Place(store, server.url, server)


_DISK_MEGABYTES: Final = {"sqlite": 24, "postgres": 160, "mariadb": 320, "redis": 24}
_SMALL: Final[dict[str, dict[str, Any]]] = {
    "postgres": {"settings": {"max_wal_size": "32MB", "min_wal_size": "32MB"}},
    "mariadb": {"settings": {"innodb-log-file-size": "16M", "innodb-buffer-pool-size": "64M"}},
    "redis": {},
}


@contextmanager
def on_a_small_disk(store: str, directory: Path) -> Iterator[Place]:
    """The same, on a file system that can be filled."""
    with _small_disk(directory, _DISK_MEGABYTES[store]) as disk:
        if store == "sqlite":
            yield Place(store, f"sqlite:///{disk.path / 'messages.db'}", disk=disk)
            return
        with _server(store, root=disk.path, **_SMALL[store]) as server:
            yield Place(store, _database(server), server, disk=disk)


@contextmanager
def _server(store: str, *, root: Path | None = None, **options: Any) -> Iterator[Server]:
    server: Server
    options |= _UNSYNCED.get(store, {})
    match store.removesuffix("-unsynced"):
        case "postgres":
            settings: Mapping[str, Any] = options.pop("settings", {})
            server = Postgres(
                durable=True, settings={"max_connections": SERVER_CONNECTIONS, **settings}, **options
            )
        case "mariadb":
            server = MariaDB(durable=True, **options)
        case _:
            server = Redis(durable=True, **options)
    server.root = root
    with server:
        yield server


def _database(server: Server) -> str:
    return server.create_database() if isinstance(server, Postgres | MariaDB) else server.url


@contextmanager
def _small_disk(directory: Path, megabytes: int) -> Iterator[Disk]:
    if os.geteuid() != 0:
        raise ServerUnavailable("only root can mount the small file system of this scenario")
    path = directory / "disk"
    path.mkdir()
    # A server has a user of its own, who must get to its files.
    directory.chmod(0o711)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0711", "tmpfs", path], check=True)
    try:
        yield Disk(path=path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
        path.rmdir()
