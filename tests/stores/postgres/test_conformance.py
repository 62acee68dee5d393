"""The Postgres store keeps the contract, whatever the caller's transaction lives in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import ClassVar

import pytest
import pytest_asyncio

from nightmail.testing.conformance import Harness, StoreConformance
from testkit.servers import Postgres
from tests.stores.documented_rights import ROLES
from tests.stores.postgres.support import (
    AsyncpgHarness,
    PostgresHarness,
    PsycopgHarness,
    SqlalchemyHarness,
    make_tables,
    user,
)
from tests.stores.postgres.sync import DjangoHarness
from tests.stores.support import only_those_that_need

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def owner(postgres_server: Postgres) -> Iterator[str]:
    """One for all tests here: each empties it."""
    postgres_server.revive()
    with postgres_server.fresh_database() as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def database(owner: str) -> AsyncIterator[str]:
    """The same as stores and callers see it: with the rights that the documentation gives all roles together."""
    await make_tables(owner)
    async with user(owner, *ROLES, with_notes=True) as url:
        yield url


class OneDatabase(StoreConformance):
    """The database of this module, emptied, with a harness of this kind."""

    kind: ClassVar[type[PostgresHarness]]

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str) -> Harness:  # type: ignore[override]
        harness = self.kind(database, owner=owner)
        await harness.make_empty()
        return harness


class TestPostgres(OneDatabase):
    """With a caller who uses asyncpg."""

    kind = AsyncpgHarness


class TestPostgresWithSqlalchemy(OneDatabase):
    """With a caller who uses SQLAlchemy: those tests in which there is a caller."""

    kind = SqlalchemyHarness


class TestPostgresWithPsycopg(OneDatabase):
    """With a caller who uses psycopg: those tests in which there is a caller."""

    kind = PsycopgHarness


class TestPostgresWithDjango(OneDatabase):
    """With a synchronous caller who uses Django: those tests in which there is such code."""

    kind = DjangoHarness


only_those_that_need(TestPostgresWithSqlalchemy, "transactions", "blocking")
only_those_that_need(TestPostgresWithPsycopg, "transactions")
only_those_that_need(TestPostgresWithDjango, "blocking")
