"""`SyncPublisher`: synchronous code publishes in its own transaction, and asynchronous handlers get it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from nightmail import SyncPublisher
from nightmail.errors import CannotJoin, NotInTransaction, TimerExists
from nightmail.outcome import Done
from tests.broker.support import Heard, Make, on_sql, started

_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
LATER = timedelta(hours=1)


class Undo(Exception):
    """Rolls a transaction back."""


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The same database, for synchronous code."""
    scheme, rest = url.split("://", 1)
    made = create_engine(f"{_DRIVERS[scheme]}://{rest}")
    yield made
    made.dispose()


@on_sql
async def test_a_session_carries_the_message_to_a_handler(make: Make, heard: Heard, engine: Engine) -> None:
    broker, got = make(), []

    @broker.subscriber("q")
    async def take(body: dict[str, int]) -> None:
        got.append(body)

    publisher = SyncPublisher(broker)

    def order() -> int | None:
        with Session(engine) as session, session.begin():
            session.execute(text("create table orders (id integer)"))
            return publisher.publish({"order": 7}, "q", session=session)

    async with started(broker):
        sent = await asyncio.to_thread(order)
        await heard.until(lambda: heard.of(sent) == [Done()])

    assert got == [{"order": 7}]


@on_sql
async def test_a_broker_that_was_never_connected_will_do(make: Make, engine: Engine) -> None:
    async with make():
        pass  # Now the tables are there.
    publisher = SyncPublisher(make())
    with Session(engine) as session, session.begin():
        ids = publisher.publish_batch("a", "b", queue="q", session=session, activate_in=LATER)

    async with make() as broker:
        assert [waiting.id for waiting in await broker.pending("q")] == ids
        assert [waiting.body for waiting in await broker.pending("q")] == [b"a", b"b"]


class Tea(BaseModel):
    """What is ordered."""

    cups: int


@on_sql
async def test_models_and_codecs_are_encoded_as_the_broker_does(make: Make, engine: Engine) -> None:
    async with make():
        pass
    publisher = SyncPublisher(make())
    with Session(engine) as session, session.begin():
        publisher.publish(Tea(cups=2), "q", session=session, activate_in=LATER)

    async with make() as broker:
        assert [waiting.body for waiting in await broker.pending("q")] == [b'{"cups":2}']


@on_sql
async def test_what_is_rolled_back_was_never_published(make: Make, engine: Engine) -> None:
    async with make() as broker:
        publisher = SyncPublisher(broker)
        with pytest.raises(Undo), Session(engine) as session, session.begin():
            publisher.publish("x", "q", session=session, activate_in=LATER)
            raise Undo

        assert await broker.pending() == []


@on_sql
async def test_timers_are_named_cancelled_and_moved(make: Make, engine: Engine) -> None:
    async with make() as broker:
        publisher = SyncPublisher(broker)
        with Session(engine) as session, session.begin():
            assert publisher.publish("x", "q", timer_id="t", activate_in=LATER, session=session)
            assert publisher.publish("y", "q", timer_id="t", activate_in=LATER, session=session) is None
            with pytest.raises(TimerExists):
                publisher.publish("y", "q", timer_id="t", on_conflict="raise", session=session)
            assert publisher.reschedule_timer("q", "t", activate_in=2 * LATER, session=session)
            assert not publisher.reschedule_timer("q", "other", activate_in=LATER, session=session)
        assert await broker.has_pending("q", "t")

        with Session(engine) as session, session.begin():
            assert publisher.cancel_timer("q", "t", session=session)
            assert not publisher.cancel_timer("q", "t", session=session)
        assert not await broker.has_pending("q", "t")


@on_sql
async def test_what_cannot_carry_the_message_is_refused(make: Make, engine: Engine) -> None:
    async with make() as broker:
        publisher = SyncPublisher(broker)
        with pytest.raises(ValueError, match="session is missing"):
            publisher.publish("x", "q")
        with pytest.raises(ValueError, match="say when"):
            publisher.reschedule_timer("q", "t", session=object())
        with pytest.raises(CannotJoin):
            publisher.publish("x", "q", session=object())
        with pytest.raises(CannotJoin):
            publisher.publish("x", "q", session=engine)
        with engine.connect() as connection:
            automatic = connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(NotInTransaction):
                publisher.publish("x", "q", session=automatic)
        with pytest.raises(NotInTransaction):
            publisher.publish("x", "q", session=connection)
        with Session(engine) as session, pytest.raises(CannotJoin, match="SyncPublisher"):
            await broker.publish("x", "q", session=session)

        assert await broker.pending() == []
