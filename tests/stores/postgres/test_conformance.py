"""The Postgres store keeps the contract, whatever the caller's transaction lives in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from nightmail.testing.conformance import Harness, StoreConformance
from nightmail.testing.conformance.blocking import BlockingConformance
from nightmail.testing.conformance.blocking_leases import BlockingLeasesConformance
from nightmail.testing.conformance.fixtures import StoreFixtures
from testkit.servers import Postgres
from tests.stores.documented_rights import ROLES
from tests.stores.postgres.support import (
    AsyncpgHarness,
    PsycopgHarness,
    SqlalchemyHarness,
    make_tables,
    user,
)
from tests.stores.postgres.sync import DjangoHarness

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


class TestPostgres(StoreConformance):
    """With a caller who uses asyncpg."""

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str) -> Harness:  # type: ignore[override]
        harness = AsyncpgHarness(database, owner=owner)
        await harness.make_empty()
        return harness


class TestPostgresWithSqlalchemy(StoreConformance):
    """With a caller who uses SQLAlchemy: those tests in which there is a caller."""

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str) -> Harness:  # type: ignore[override]
        harness = SqlalchemyHarness(database, owner=owner)
        await harness.make_empty()
        return harness


class TestPostgresWithPsycopg(StoreConformance):
    """With a caller who uses psycopg: those tests in which there is a caller."""

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str) -> Harness:  # type: ignore[override]
        harness = PsycopgHarness(database, owner=owner)
        await harness.make_empty()
        return harness


class TestPostgresWithDjango(BlockingConformance, BlockingLeasesConformance, StoreFixtures):
    """With a synchronous caller who uses Django."""

    @pytest_asyncio.fixture
    async def harness(self, database: str, owner: str, monkeypatch: pytest.MonkeyPatch) -> Harness:  # type: ignore[override]
        # Django refuses to be used where an event loop runs. The suite does it on purpose.
        monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        harness = DjangoHarness(database, owner=owner)
        await harness.make_empty()
        return harness


for _name in dir(StoreConformance):
    _needs = set(getattr(getattr(StoreConformance, _name), "needs", ()))
    if _name.startswith("test_") and not _needs & {"transactions", "blocking"}:
        setattr(TestPostgresWithSqlalchemy, _name, None)
    if _name.startswith("test_") and "transactions" not in _needs:
        setattr(TestPostgresWithPsycopg, _name, None)
