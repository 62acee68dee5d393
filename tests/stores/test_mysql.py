"""The MySQL store keeps the contract, whatever the caller's transaction lives in."""

from __future__ import annotations

from collections.abc import Iterator

import aiomysql  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from nightmail.testing.conformance import Harness, StoreConformance
from testkit.servers.mariadb import MariaDB
from tests.stores.mysql_support import DriverHarness, MySQLHarness, SqlalchemyHarness

pytestmark = pytest.mark.mysql


@pytest.fixture(scope="module")
def database(mariadb_server: MariaDB) -> Iterator[str]:
    """One for all tests here: each empties it."""
    mariadb_server.revive()
    with mariadb_server.fresh_database() as url:
        yield url


async def emptied(harness: MySQLHarness) -> Harness:
    await harness.make_empty()
    return harness


class TestMySQL(StoreConformance):
    """With a caller who uses asyncmy."""

    @pytest_asyncio.fixture
    async def harness(self, database: str) -> Harness:  # type: ignore[override]
        return await emptied(DriverHarness(database))


class TestMySQLWithAiomysql(StoreConformance):
    """With a caller who uses aiomysql: those tests in which there is a caller."""

    @pytest_asyncio.fixture
    async def harness(self, database: str) -> Harness:  # type: ignore[override]
        return await emptied(DriverHarness(database, aiomysql))


class TestMySQLWithSqlalchemy(StoreConformance):
    """With a caller who uses SQLAlchemy: those tests in which there is a caller."""

    @pytest_asyncio.fixture
    async def harness(self, database: str) -> Harness:  # type: ignore[override]
        return await emptied(SqlalchemyHarness(database))


for _name in dir(StoreConformance):
    if _name.startswith("test_") and "transactions" not in getattr(
        getattr(StoreConformance, _name), "needs", ()
    ):
        for _without_others in (TestMySQLWithAiomysql, TestMySQLWithSqlalchemy):
            setattr(_without_others, _name, None)
