"""The Postgres store keeps the contract, whatever the caller's transaction lives in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import pytest_asyncio

from nightmail.testing.conformance import Harness, StoreConformance
from testkit.servers import Postgres
from tests.stores.postgres_support import AsyncpgHarness, SqlalchemyHarness

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def database(postgres_server: Postgres) -> Iterator[str]:
    """One for all tests here: each empties it."""
    postgres_server.revive()
    with postgres_server.fresh_database() as url:
        yield url


class TestPostgres(StoreConformance):
    """With a caller who uses asyncpg."""

    @pytest_asyncio.fixture
    async def harness(self, database: str) -> Harness:  # type: ignore[override]
        harness = AsyncpgHarness(database)
        await harness.make_empty()
        return harness


class TestPostgresWithSqlalchemy(StoreConformance):
    """With a caller who uses SQLAlchemy: those tests in which there is a caller."""

    @pytest_asyncio.fixture
    async def harness(self, database: str) -> Harness:  # type: ignore[override]
        harness = SqlalchemyHarness(database)
        await harness.make_empty()
        return harness


for _name in dir(StoreConformance):
    if _name.startswith("test_") and "transactions" not in getattr(
        getattr(StoreConformance, _name), "needs", ()
    ):
        setattr(TestPostgresWithSqlalchemy, _name, None)
