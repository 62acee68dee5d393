"""What cannot be a caller's transaction on Postgres, and what errors do to one that can."""

from __future__ import annotations

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from nightmail.errors import CannotJoin, NotInTransaction
from nightmail.testing.conformance.build import message
from tests.stores.postgres.support import CALLERS, connection, open_store, sqlalchemy_url
from tests.stores.shared.backend import Begin
from tests.stores.shared.refusals import Refusals

pytestmark = pytest.mark.postgres


class TestRefusals(Refusals):
    @pytest.fixture(params=CALLERS.values(), ids=list(CALLERS))
    def begin(self, request: pytest.FixtureRequest) -> Begin:
        begin: Begin = request.param
        return begin


async def test_a_pooled_connection_is_refused_outside_a_transaction_and_once_it_was_given_back(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store, asyncpg.create_pool(postgres_url, min_size=1) as pool:
        with pytest.raises(CannotJoin):
            await store.publish(message(), transaction=pool)
        async with pool.acquire() as own:
            with pytest.raises(NotInTransaction):
                await store.publish(message(), transaction=own)
        with pytest.raises(NotInTransaction, match="given back"):
            await store.publish(message(), transaction=own)
        assert await store.peek() == []


async def test_the_callers_own_errors_stay_their_own(postgres_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_url))
    async with open_store(postgres_url) as store:
        async with connection(postgres_url) as own:
            transaction = own.transaction()
            await transaction.start()
            with pytest.raises(asyncpg.UndefinedTableError):
                await own.execute("select * from nowhere")
            with pytest.raises(asyncpg.InFailedSQLTransactionError):
                await store.publish(message(), transaction=own)
            await transaction.rollback()
        async with AsyncSession(engine) as session:
            await store.publish(message(b"with a session"), transaction=session)
            assert (await session.execute(text("select count(*) from nightmail_messages"))).scalar() == 1
    await engine.dispose()
