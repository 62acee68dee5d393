"""The MySQL store keeps the contract, whatever the caller's transaction lives in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiomysql  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from nightmail.testing.conformance import Harness, StoreConformance
from testkit.servers.mariadb import MariaDB
from tests.stores.documented_rights import ROLES
from tests.stores.mysql.support import (
    DriverHarness,
    MySQLHarness,
    SqlalchemyHarness,
    make_tables,
    user,
)
from tests.stores.mysql.sync import BlockingSqlalchemyHarness, DjangoHarness

pytestmark = pytest.mark.mysql


@pytest.fixture(scope="module")
def owner(mariadb_server: MariaDB) -> Iterator[str]:
    """One for all tests here: each empties it."""
    mariadb_server.revive()
    with mariadb_server.fresh_database() as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def database(owner: str) -> AsyncIterator[str]:
    """The same as stores and callers see it: with the rights that the documentation gives all roles together."""
    await make_tables(owner)
    async with user(owner, *ROLES, with_notes=True) as url:
        yield url


async def emptied(harness: MySQLHarness) -> Harness:
    await harness.make_empty()
    return harness


class TestMySQL(StoreConformance):
    """With a caller who uses asyncmy."""

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str) -> Harness:  # type: ignore[override]
        return await emptied(DriverHarness(database, owner=owner))


class TestMySQLWithAiomysql(StoreConformance):
    """With a caller who uses aiomysql: those tests in which there is a caller."""

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str) -> Harness:  # type: ignore[override]
        return await emptied(DriverHarness(database, aiomysql, owner=owner))


class TestMySQLWithSqlalchemy(StoreConformance):
    """With a caller who uses SQLAlchemy: those tests in which there is a caller."""

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str) -> Harness:  # type: ignore[override]
        return await emptied(SqlalchemyHarness(database, owner=owner))


class TestMySQLBlockingSqlalchemy(StoreConformance):
    """With synchronous code that uses SQLAlchemy: those tests in which there is such code."""

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str) -> Harness:  # type: ignore[override]
        return await emptied(BlockingSqlalchemyHarness(database, owner=owner))


class TestMySQLBlockingDjango(StoreConformance):
    """With synchronous code that uses Django: those tests in which there is such code."""

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str) -> Harness:  # type: ignore[override]
        return await emptied(DjangoHarness(database, owner=owner))


_ONLY_THOSE_WITH = {
    TestMySQLWithAiomysql: "transactions",
    TestMySQLWithSqlalchemy: "transactions",
    TestMySQLBlockingSqlalchemy: "blocking",
    TestMySQLBlockingDjango: "blocking",
}
for _name in dir(StoreConformance):
    if _name.startswith("test_"):
        for _class, _need in _ONLY_THOSE_WITH.items():
            if _need not in getattr(getattr(StoreConformance, _name), "needs", ()):
                setattr(_class, _name, None)
