"""The caller's transaction carries the message: whatever it lives in, on both SQL stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from nightmail import OutboxBroker
from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase
from nightmail.outcome import Done
from testkit.servers import Postgres
from tests.broker.support import HOUR, Heard, Make, started

LATER: dict[str, Any] = {"activate_in": HOUR}


class Undo(Exception):
    """Rolls a transaction back."""


@dataclass
class Caller:
    """A way to hold a transaction, and to write one's own row in it."""

    engine: AsyncEngine
    transaction: Callable[[], AbstractAsyncContextManager[Any]]
    order: Callable[[Any, str], Awaitable[None]]

    async def orders(self) -> list[str]:
        async with self.engine.connect() as connection:
            return sorted((await connection.execute(text("select name from orders"))).scalars())


def _async_url(url: str) -> str:
    return url.replace("sqlite://", "sqlite+aiosqlite://").replace("postgresql://", "postgresql+asyncpg://")


@pytest.fixture(params=["session", "autobegun session", "connection", "raw"])
async def caller(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Caller]:
    """Each way to hold a transaction on this store."""
    engine = create_async_engine(_async_url(url))
    async with engine.begin() as connection:
        await connection.execute(text("create table orders (name varchar(50))"))

    @asynccontextmanager
    async def session() -> AsyncIterator[AsyncSession]:
        async with async_sessionmaker(engine)() as made, made.begin():
            yield made

    @asynccontextmanager
    async def autobegun() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as made:
            yield made
            await made.commit()

    @asynccontextmanager
    async def raw() -> AsyncIterator[Any]:
        if url.startswith("sqlite"):
            async with aiosqlite.connect(url.removeprefix("sqlite:///"), isolation_level=None) as connection:
                await connection.execute("begin immediate")
                try:
                    yield connection
                except BaseException:
                    await connection.rollback()
                    raise
                await connection.commit()
        else:
            driver = await asyncpg.connect(url)
            try:
                async with driver.transaction():
                    yield driver
            finally:
                await driver.close()

    async def order(transaction: Any, name: str) -> None:
        if request.param == "raw":
            await transaction.execute(f"insert into orders values ('{name}')")
        else:
            await transaction.execute(text("insert into orders values (:name)"), {"name": name})

    ways = {"session": session, "autobegun session": autobegun, "connection": engine.begin, "raw": raw}
    yield Caller(engine, ways[request.param], order)
    await engine.dispose()


pytestmark = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


async def test_order_and_message_commit_together(make: Make, caller: Caller) -> None:
    async with make() as broker:
        async with caller.transaction() as transaction:
            await caller.order(transaction, "tea")
            sent = await broker.publish("tea", "q", session=transaction, **LATER)

        assert await caller.orders() == ["tea"]
        assert [pending.id for pending in await broker.pending("q")] == [sent]


async def test_order_and_message_roll_back_together(make: Make, caller: Caller) -> None:
    async with make() as broker:
        with suppress(Undo):
            async with caller.transaction() as transaction:
                await caller.order(transaction, "tea")
                await broker.publish("tea", "q", session=transaction, **LATER)
                await broker.publish_batch("more", "tea", queue="q", session=transaction, **LATER)
                raise Undo

        assert await caller.orders() == []
        assert await broker.pending("q") == []


async def test_a_message_that_comes_before_the_callers_own_writes_rolls_back_too(
    make: Make, caller: Caller
) -> None:
    """SQLAlchemy begins only with the first statement: ours may be that one."""
    async with make() as broker:
        with suppress(Undo):
            async with caller.transaction() as transaction:
                await broker.publish("tea", "q", session=transaction, timer_id="t", **LATER)
                raise Undo

        assert await broker.pending("q") == []


async def test_a_transaction_sees_what_it_has_not_committed(make: Make, caller: Caller) -> None:
    async with make() as broker, caller.transaction() as transaction:
        await broker.publish_batch("a", "b", queue="q", session=transaction, **LATER)

        assert [pending.body for pending in await broker.pending("q", session=transaction)] == [b"a", b"b"]


async def test_a_conflict_leaves_the_callers_transaction_usable(make: Make, caller: Caller) -> None:
    async with make() as broker:
        await broker.publish("first", "q", timer_id="t", **LATER)
        async with caller.transaction() as transaction:
            assert await broker.publish("second", "q", timer_id="t", session=transaction) is None
            await caller.order(transaction, "tea")

        assert await caller.orders() == ["tea"]
        assert [pending.body for pending in await broker.pending("q")] == [b"first"]


async def test_timers_are_cancelled_and_rescheduled_with_the_transaction(make: Make, caller: Caller) -> None:
    async with make() as broker:
        await broker.publish("x", "q", timer_id="t", **LATER)
        with suppress(Undo):
            async with caller.transaction() as transaction:
                assert await broker.reschedule_timer("q", "t", activate_in=2 * HOUR, session=transaction)
                assert await broker.cancel_timer("q", "t", session=transaction)
                assert await broker.cancel_all("q", session=transaction) == 0
                raise Undo
        assert await broker.has_pending("q", "t")

        async with caller.transaction() as transaction:
            assert await broker.cancel_timer("q", "t", session=transaction)
        assert not await broker.has_pending("q", "t")


async def test_a_worker_hears_of_a_commit_at_once(make: Make, heard: Heard, caller: Caller) -> None:
    broker = make()

    @broker.subscriber("q")
    async def take(body: str) -> None: ...

    async with started(broker):
        async with caller.transaction() as transaction:
            await caller.order(transaction, "tea")
            sent = await broker.publish("tea", "q", session=transaction)
        await heard.until(lambda: heard.of(sent) == [Done()])


async def test_a_closed_or_transactionless_session_is_refused(make: Make, url: str) -> None:
    engine = create_async_engine(_async_url(url))
    async with make() as broker:
        async with engine.connect() as plain:
            automatic = await plain.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(NotInTransaction):
                await broker.publish("x", "q", session=automatic)
        with pytest.raises(NotInTransaction):
            await broker.publish("x", "q", session=plain)
        with pytest.raises(CannotJoin, match="AsyncEngine"):
            await broker.publish("x", "q", session=engine)
        with pytest.raises(CannotJoin, match="synchronous"):
            await broker.publish("x", "q", session=engine.sync_engine)

        assert await broker.pending() == []
    await engine.dispose()


@pytest.fixture
def elsewhere(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Another database of the same kind."""
    if url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'elsewhere.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres_server")
    other = server.create_database()
    yield other
    server.drop_database(other)


async def test_a_session_of_another_database_is_refused(make: Make, elsewhere: str) -> None:
    async with OutboxBroker(elsewhere, create_tables=True, logger=None):
        pass
    engine = create_async_engine(_async_url(elsewhere))
    async with make() as broker:
        with pytest.raises(OtherDatabase):
            async with engine.begin() as connection:
                await broker.publish("x", "q", session=connection)

        assert await broker.pending() == []
    await engine.dispose()


async def test_an_engine_makes_a_broker_and_stays_the_callers(make: Make, url: str) -> None:
    engine = create_async_engine(_async_url(url))
    async with OutboxBroker(engine, create_tables=True, logger=None) as broker:
        async with AsyncSession(engine) as session:
            sent = await broker.publish("x", "q", session=session, **LATER)
            await session.commit()
        assert [pending.id for pending in await broker.pending()] == [sent]

    async with engine.connect() as still_usable:
        assert (await still_usable.execute(text("select 1"))).scalar() == 1
    await engine.dispose()
