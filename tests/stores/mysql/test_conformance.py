"""The MySQL store keeps the contract, whatever the caller's transaction lives in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import ClassVar

import aiomysql  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from nightmail.testing.conformance import Harness, StoreConformance
from testkit.servers.mariadb import MariaDB
from tests.stores.documented_rights import ROLES
from tests.stores.mysql.support import DriverHarness, MySQLHarness, SqlalchemyHarness, make_tables, user
from tests.stores.mysql.sync import BlockingSqlalchemyHarness, DjangoHarness
from tests.stores.support import only_those_that_need

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


class OneDatabase(StoreConformance):
    """The database of this module, emptied, with a harness of this kind."""

    kind: ClassVar[Callable[..., MySQLHarness]]

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str) -> Harness:  # type: ignore[override]
        harness = type(self).kind(database, owner=owner)
        await harness.make_empty()
        return harness


class TestMySQL(OneDatabase):
    """With a caller who uses asyncmy."""

    kind = DriverHarness


class TestMySQLWithAiomysql(OneDatabase):
    """With a caller who uses aiomysql: those tests in which there is a caller."""

    kind = partial(DriverHarness, driver=aiomysql)


class TestMySQLWithSqlalchemy(OneDatabase):
    """With a caller who uses SQLAlchemy: those tests in which there is a caller."""

    kind = SqlalchemyHarness


class TestMySQLBlockingSqlalchemy(OneDatabase):
    """With synchronous code that uses SQLAlchemy: those tests in which there is such code."""

    kind = BlockingSqlalchemyHarness


class TestMySQLBlockingDjango(OneDatabase):
    """With synchronous code that uses Django: those tests in which there is such code."""

    kind = DjangoHarness


only_those_that_need(TestMySQLWithAiomysql, "transactions")
only_those_that_need(TestMySQLWithSqlalchemy, "transactions")
only_those_that_need(TestMySQLBlockingSqlalchemy, "blocking")
only_those_that_need(TestMySQLBlockingDjango, "blocking")
