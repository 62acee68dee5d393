"""The three databases that have tables, and Redis, which has keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from nightmail.store import FullStore
from nightmail.stores import open_store

DRIVERS: Final = {
    "postgresql": ("postgresql+psycopg", "postgresql+asyncpg"),
    "mysql": ("mysql+pymysql", "mysql+asyncmy"),
    "mariadb": ("mariadb+pymysql", "mariadb+asyncmy"),
    "sqlite": ("sqlite", "sqlite+aiosqlite"),
}
SERVERS: Final = [
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mysql", marks=pytest.mark.mysql),
]
TABLES: Final = [*SERVERS, pytest.param("sqlite", marks=pytest.mark.sqlite)]
EVERY: Final = [*TABLES, pytest.param("redis", marks=pytest.mark.redis)]
"""For the fixture `database`: those on a server, those that have tables, and Redis, which has keys."""


@dataclass(frozen=True)
class Database:
    """An empty database, as the store, as Alembic and as an application reach it."""

    dialect: str
    url: str

    @property
    def for_alembic(self) -> str:
        return self._driven_by(DRIVERS[self.dialect][0])

    @property
    def for_applications(self) -> str:
        return self._driven_by(DRIVERS[self.dialect][1])

    def _driven_by(self, driver: str) -> str:
        return self.url.replace(self.url.partition("://")[0], driver, 1)


@pytest.fixture
def postgres(postgres_url: str) -> Database:
    return Database("postgresql", postgres_url)


@pytest.fixture
def mysql(mysql_url: str) -> Database:
    return Database("mysql", mysql_url)


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    return Database("sqlite", f"sqlite:///{tmp_path / 'outbox.db'}")


@pytest.fixture
def redis(redis_url: str) -> Database:
    return Database("redis", redis_url)


@pytest.fixture(params=TABLES)
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def store(database: Database) -> AsyncIterator[FullStore]:
    """A store of this version, migrated and open."""
    store = open_store(database.url)
    await store.open()
    try:
        await store.migrate()
        yield store
    finally:
        await store.close()
