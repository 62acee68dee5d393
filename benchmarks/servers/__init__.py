"""Private servers, as durable as in production. Every system has a database of its own on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.servers.base import Server
from benchmarks.servers.mariadb import MariaDB
from benchmarks.servers.postgres import Postgres
from benchmarks.servers.redis import Redis
from benchmarks.servers.sqlite import SQLite

__all__ = ["SERVERS", "Server"]

SERVERS: Final[dict[str, Callable[[], Server]]] = {
    "postgres": Postgres,
    "redis": Redis,
    "mariadb": MariaDB,
    "sqlite": SQLite,
}
