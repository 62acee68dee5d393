"""What cannot be a caller's transaction on Postgres, and what errors do to one that can."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from nightmail.errors import (
    CannotJoin,
    LeaseLost,
    NotInTransaction,
    OtherDatabase,
    SchemaMissing,
    TimerExists,
)
from nightmail.outcome import WriteResult
from nightmail.stores.postgres import PostgresStore
from testkit.servers import Postgres
from tests.stores.postgres.support import (
    EVERY_KIND,
    HOUR,
    QUEUE,
    claim,
    connection,
    done,
    message,
    open_store,
    psycopg_url,
    raw_connection,
    sqlalchemy_url,
)

pytestmark = pytest.mark.postgres

Begin: TypeAlias = Callable[[str], AbstractAsyncContextManager[Any]]

every_kind = pytest.mark.parametrize("begin", EVERY_KIND)


async def refused(store: PostgresStore, transaction: Any) -> None:
    await store.publish(message(), transaction=transaction)


async def test_a_connection_outside_a_transaction_is_refused(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        async with connection(postgres_url) as own:
            with pytest.raises(NotInTransaction, match="transaction"):
                await refused(store, own)
        with pytest.raises(NotInTransaction):
            await refused(store, own)
        async with asyncpg.create_pool(postgres_url, min_size=1) as pool:
            async with pool.acquire() as own:
                with pytest.raises(NotInTransaction):
                    await refused(store, own)
            with pytest.raises(NotInTransaction, match="given back"):
                await refused(store, own)
        assert await store.peek() == []


@pytest.mark.parametrize("where", ["engine", "connection"])
async def test_autocommit_is_refused(postgres_url: str, where: str) -> None:
    options = {"isolation_level": "AUTOCOMMIT"}
    engine = create_async_engine(sqlalchemy_url(postgres_url), **(options if where == "engine" else {}))
    async with open_store(postgres_url) as store:
        async with engine.connect() as own:
            if where == "connection":
                own = await own.execution_options(**options)
            with pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
                await refused(store, own)
        async with AsyncSession(engine) as session:
            if where == "connection":
                _ = await session.connection(execution_options=options)
            with pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
                await refused(store, session)
        assert await store.peek() == []
    await engine.dispose()


async def test_what_is_no_transaction_is_refused(postgres_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_url))
    async with open_store(postgres_url) as store, asyncpg.create_pool(postgres_url, min_size=1) as pool:
        for wrong in (pool, engine, object(), "a transaction", postgres_url):
            with pytest.raises(CannotJoin):
                await refused(store, wrong)
    await engine.dispose()


async def test_a_session_of_another_kind_of_database_is_refused(postgres_url: str) -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with open_store(postgres_url) as store, AsyncSession(engine) as session:
        with pytest.raises(OtherDatabase, match="sqlite"):
            await refused(store, session)
    await engine.dispose()


@every_kind
@pytest.mark.parametrize("with_tables", [False, True])
async def test_a_transaction_in_another_database_is_refused(
    postgres_server: Postgres, postgres_url: str, begin: Begin, with_tables: bool
) -> None:
    with postgres_server.fresh_database() as elsewhere:
        if with_tables:
            async with open_store(elsewhere):
                pass
        async with open_store(postgres_url) as store, begin(elsewhere) as transaction:
            for _ in range(2):
                # Refused, and yet the transaction goes on: the second time is no other than the first.
                with pytest.raises(OtherDatabase):
                    await refused(store, transaction)


async def test_nothing_is_written_into_another_database_that_has_tables_like_ours(
    postgres_server: Postgres, postgres_url: str
) -> None:
    with postgres_server.fresh_database() as elsewhere:
        async with open_store(postgres_url) as store, open_store(elsewhere) as other:
            await store.publish(message())
            await other.publish(message(b"theirs", timer_id="t"))
            deliveries = await claim(store)
            async with raw_connection(elsewhere) as transaction:
                for attempt in (
                    store.publish(message(), transaction=transaction),
                    store.publish(message(timer_id="new"), transaction=transaction),
                    store.publish(message(timer_id="t", on_conflict="replace"), transaction=transaction),
                    store.publish_batch([message()], transaction=transaction),
                    store.hold(deliveries, transaction=transaction),
                    store.ack(deliveries, transaction=transaction),
                    store.cancel(QUEUE, "t", transaction=transaction),
                    store.cancel_all(QUEUE, transaction=transaction),
                    store.reschedule(QUEUE, "t", HOUR, transaction=transaction),
                    store.peek(transaction=transaction),
                ):
                    with pytest.raises(OtherDatabase):
                        await attempt
                # Refused, and yet the caller's transaction goes on.
                await transaction.execute("select 1")

            assert [delivery.body for delivery in await claim(other)] == [b"theirs"]
            assert await done(store, deliveries) == [WriteResult.WRITTEN]


async def test_tables_that_were_made_anew_are_known_again(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        async with raw_connection(postgres_url) as transaction:
            await store.publish(message(b"before"), transaction=transaction)
            await transaction.execute("update nightmail_meta set identity = gen_random_uuid()")

        async with raw_connection(postgres_url) as transaction:
            await store.publish(message(b"after"), transaction=transaction)

        assert [delivery.body for delivery in await claim(store)] == [b"before", b"after"]


async def test_without_tables_a_transaction_is_told_so(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    async with raw_connection(postgres_url) as transaction:
        with pytest.raises(SchemaMissing):
            await refused(store, transaction)
        assert await transaction.fetchval("select 1") == 1
    await store.close()


# --------------------------------------------------------------------------------- what errors do


async def test_the_callers_own_errors_stay_their_own(postgres_url: str) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_url))
    async with open_store(postgres_url) as store:
        async with connection(postgres_url) as own:
            transaction = own.transaction()
            await transaction.start()
            with pytest.raises(asyncpg.UndefinedTableError):
                await own.execute("select * from nowhere")
            with pytest.raises(asyncpg.InFailedSQLTransactionError):
                await refused(store, own)
            await transaction.rollback()
        async with AsyncSession(engine) as session:
            await store.publish(message(b"with a session"), transaction=session)
            assert (await session.execute(text("select count(*) from nightmail_messages"))).scalar() == 1
    await engine.dispose()


async def test_a_message_acked_under_two_tokens_at_once_is_refused(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        await store.publish(message())
        lost = await store.claim([QUEUE], limit=1, lease=timedelta(0), token=uuid4())
        (held,) = await claim(store)

        async with raw_connection(postgres_url) as transaction:
            with pytest.raises(LeaseLost):
                await store.ack([*lost.deliveries, held], transaction=transaction)

        assert await done(store, [held]) == [WriteResult.WRITTEN]


# ------------------------------------------------------------------------------------------- psycopg


async def test_a_psycopg_connection_outside_a_transaction_is_refused(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as own:
            with pytest.raises(NotInTransaction, match=r"connection\.transaction\(\)"):
                await refused(store, own)
        with pytest.raises(NotInTransaction, match="closed"):
            await refused(store, own)
        assert await store.peek() == []


@pytest.mark.parametrize("where", ["engine", "connection"])
async def test_autocommit_on_psycopg_is_refused(postgres_url: str, where: str) -> None:
    options = {"isolation_level": "AUTOCOMMIT"}
    engine = create_async_engine(psycopg_url(postgres_url), **(options if where == "engine" else {}))
    async with open_store(postgres_url) as store:
        async with engine.connect() as own:
            if where == "connection":
                own = await own.execution_options(**options)
            with pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
                await refused(store, own)
        assert await store.peek() == []
    await engine.dispose()


@every_kind
async def test_a_refusal_leaves_every_kind_of_transaction_usable(
    postgres_server: Postgres, postgres_url: str, begin: Begin
) -> None:
    with postgres_server.fresh_database() as elsewhere:
        async with open_store(postgres_url) as store, open_store(elsewhere) as other:
            async with begin(elsewhere) as transaction:
                with pytest.raises(OtherDatabase):
                    await refused(store, transaction)
                await other.publish(message(b"first", timer_id="t"), transaction=transaction)
                with pytest.raises(TimerExists):
                    await other.publish(message(timer_id="t", on_conflict="raise"), transaction=transaction)
                await other.publish(message(b"second"), transaction=transaction)

            assert [found.body for found in await other.peek()] == [b"first", b"second"]
            assert await store.peek() == []
