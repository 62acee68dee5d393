"""The Postgres store keeps the contract, whatever the caller's transaction lives in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from nightmail.store import FullStore
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance import Harness, StoreConformance

pytestmark = pytest.mark.postgres


class PostgresHarness(Harness):
    """A database of its own; a caller's transaction is one of asyncpg's."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    async def prepare(self) -> None:
        async with self._connection() as connection:
            await connection.execute("create table notes (value text not null)")

    async def open(self) -> FullStore:
        store = PostgresStore(self.url, clock=self.clock)
        await store.open()
        await store.migrate()
        return store

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[Any]:
        isolation = "repeatable_read" if repeatable_read else "read_committed"
        async with self._connection() as connection, connection.transaction(isolation=isolation):
            yield connection

    async def write(self, transaction: Any, value: str) -> None:
        await transaction.execute("insert into notes values ($1)", value)

    async def written(self) -> list[str]:
        async with self._connection() as connection:
            return [row["value"] for row in await connection.fetch("select value from notes order by value")]

    @asynccontextmanager
    async def outside_any_transaction(self) -> AsyncIterator[Any]:
        async with self._connection() as connection:
            yield connection

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()


class TestPostgres(StoreConformance):
    """The conformance suite."""

    @pytest_asyncio.fixture
    async def harness(self, postgres_url: str) -> Harness:  # type: ignore[override]
        harness = PostgresHarness(postgres_url)
        await harness.prepare()
        return harness
