"""A store on an engine whose pool has listeners, and what else an engine may bring."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from nightmail.errors import StoreUnavailable
from nightmail.stores.postgres.connect import connector
from nightmail.stores.postgres.lane import Lane
from nightmail.stores.postgres.link import Role
from tests.stores.postgres.support import sqlalchemy_url
from tests.stores.shared.engine_listeners import EngineListeners

pytestmark = pytest.mark.postgres


class TestPostgresEngine(EngineListeners):
    """With SQLAlchemy's asyncpg."""

    @pytest_asyncio.fixture
    async def engine(self, postgres_url: str) -> AsyncIterator[AsyncEngine]:  # type: ignore[override]
        engine = create_async_engine(sqlalchemy_url(postgres_url))
        yield engine
        await engine.dispose()


async def test_what_leaves_a_transaction_open_is_not_told_as_done(postgres_url: str) -> None:
    lane = Lane(Role("careless"), connector(postgres_url))

    with pytest.raises(StoreUnavailable, match="left open"):
        await lane.run(lambda link: link.driver.execute("begin"))

    # And the connection is not used again.
    assert lane.link is None
    assert await lane.run(lambda link: link.fetchval("select 1")) == 1
    await lane.close()


async def test_a_connection_inside_a_transaction_is_not_used(postgres_url: str) -> None:
    connect = connector(postgres_url)

    async def begun() -> object:
        connection = await connect()
        await connection.execute("begin")
        return connection

    lane = Lane(Role("careless"), begun)  # type: ignore[arg-type]  # Like an engine that hands such a one out.

    with pytest.raises(StoreUnavailable, match="inside a transaction"):
        await lane.run(lambda link: link.fetchval("select 1"))
    await lane.close()
