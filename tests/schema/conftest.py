"""The three databases that have tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

DRIVERS: Final = {
    "postgresql": ("postgresql+psycopg", "postgresql+asyncpg"),
    "mysql": ("mysql+pymysql", "mysql+asyncmy"),
    "mariadb": ("mariadb+pymysql", "mariadb+asyncmy"),
    "sqlite": ("sqlite", "sqlite+aiosqlite"),
}


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


@pytest.fixture(
    params=[
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mysql", marks=pytest.mark.mysql),
        pytest.param("sqlite", marks=pytest.mark.sqlite),
    ]
)
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found
