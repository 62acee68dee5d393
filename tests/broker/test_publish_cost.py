"""What a publish may cost, counted: functions called, tasks and greenlets started, statements and their shape.

The bounds are what was counted when they were set, with a few to spare. Count again before raising one. Functions on
MariaDB and SQLite are bounded in `tests/counters` alone: here a coroutine counts whenever it goes on, and how often one
waits there depends on the pieces in which an answer comes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import aiosqlite
import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import nightmail
from nightmail import OutboxBroker
from nightmail.stores.sqlite import begin_immediate
from tests.counters.baseline import exactly, within
from tests.stores.mysql import support as mysql

_OURS: Final = str(Path(nightmail.__file__).parent)
BODY: Final = {"order": 7, "item": "kettle"}
QUEUE: Final = "orders"
MANY: Final = 200

Publish = Callable[[], Awaitable[Any]]


class Counts:
    """Functions that were called on this thread."""

    def __init__(self) -> None:
        self.ours = 0
        self.python = 0
        self.names: Counter[str] = Counter()

    def profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        """For `sys.setprofile`."""
        if event == "call":
            self.python += 1
            self.ours += frame.f_code.co_filename.startswith(_OURS)
            self.names[frame.f_code.co_qualname] += 1


@contextmanager
def counted() -> Iterator[Counts]:
    counts = Counts()
    sys.setprofile(counts.profile)
    try:
        yield counts
    finally:
        sys.setprofile(None)


async def cost(publish: Publish) -> Counts:
    """What this costs once everything is known that is looked up once."""
    for _ in range(3):
        await publish()
    with counted() as counts:
        await publish()
    return counts


async def test_a_publish_reaches_its_store_in_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    async with OutboxBroker("memory://", logger=None) as broker:

        async def stored(*_args: Any, **_kwargs: Any) -> int:
            return 1

        monkeypatch.setattr(broker.store, "publish", stored)
        counts = await cost(lambda: broker.publish(BODY, QUEUE))

    within("functions", counts.ours, 27)


@pytest.mark.postgres
async def test_a_publish_in_a_transaction_of_the_driver(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    async with (
        OutboxBroker(postgres_url, create_tables=True, logger=None) as broker,
        connection.transaction(),
    ):
        counts = await cost(lambda: broker.publish(BODY, QUEUE, session=connection))
    await connection.close()

    # Arrays are slow to send: the driver asks each element whether it is another array.
    within("type checks", counts.names["ABCMeta.__instancecheck__"], 3)
    exactly("tasks", counts.names["BaseEventLoop.create_task"], 0)
    within("functions", counts.ours, 57)


@pytest.mark.postgres
async def test_a_publish_in_a_session_starts_one_greenlet(postgres_url: str) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+asyncpg://"))
    broker = OutboxBroker(postgres_url, create_tables=True, logger=None)
    async with broker, AsyncSession(engine) as session, session.begin():
        counts = await cost(lambda: broker.publish(BODY, QUEUE, session=session))
    await engine.dispose()

    exactly("greenlets", counts.names["_AsyncIoGreenlet.__init__"], 1)
    exactly("tasks", counts.names["BaseEventLoop.create_task"], 0)
    within("functions", counts.ours, 59)


@pytest.mark.mysql
async def test_a_publish_in_a_callers_transaction_on_mysql_starts_no_task(mysql_url: str) -> None:
    engine = create_async_engine(mysql.sqlalchemy_url(mysql_url))
    async with OutboxBroker(mysql_url, create_tables=True, logger=None) as broker:
        async with mysql.connection(mysql_url) as connection:
            await connection.begin()
            of_driver = await cost(lambda: broker.publish(BODY, QUEUE, session=connection))
            await connection.rollback()
        async with AsyncSession(engine) as session, session.begin():
            in_session = await cost(lambda: broker.publish(BODY, QUEUE, session=session))
    await engine.dispose()

    exactly("tasks", of_driver.names["BaseEventLoop.create_task"], 0)
    exactly("tasks", in_session.names["BaseEventLoop.create_task"], 0)
    # One for the session's connection, and one for the statement.
    exactly("greenlets", in_session.names["_AsyncIoGreenlet.__init__"], 2)


@pytest.mark.sqlite
async def test_a_publish_in_a_callers_transaction_on_sqlite_starts_one_task(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'messages.db'}"
    engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    begin_immediate(engine)
    async with OutboxBroker(url, create_tables=True, logger=None) as broker:
        async with aiosqlite.connect(tmp_path / "messages.db", isolation_level=None) as connection:
            await connection.execute("begin immediate")
            of_driver = await cost(lambda: broker.publish(BODY, QUEUE, session=connection))
            await connection.rollback()
        async with AsyncSession(engine) as session, session.begin():
            in_session = await cost(lambda: broker.publish(BODY, QUEUE, session=session))
    await engine.dispose()

    # The task keeps a cancelled publish from costing its caller the connection, or half of a timer.
    exactly("tasks", of_driver.names["BaseEventLoop.create_task"], 1)
    exactly("tasks", in_session.names["BaseEventLoop.create_task"], 1)
    # Two for the session's connection, and one for the statement.
    exactly("greenlets", in_session.names["_AsyncIoGreenlet.__init__"], 3)


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("postgres_url", marks=pytest.mark.postgres),
        pytest.param("mysql_url", marks=pytest.mark.mysql),
        pytest.param("redis_url", marks=pytest.mark.redis),
    ],
)
async def test_a_publish_by_its_own_commit_starts_one_task(url: str, request: pytest.FixtureRequest) -> None:
    async with OutboxBroker(request.getfixturevalue(url), create_tables=True, logger=None) as broker:
        counts = await cost(lambda: broker.publish(BODY, QUEUE))

    exactly("tasks", counts.names["BaseEventLoop.create_task"], 1)
    exactly("shields", counts.names["shield"], 0)
    within("functions", counts.ours, 110)


@pytest.mark.redis
async def test_no_argument_of_a_script_costs_a_call(redis_url: str) -> None:
    async with OutboxBroker(redis_url, create_tables=True, logger=None) as broker:
        counts = await cost(lambda: broker.publish(BODY, QUEUE))

    exactly("encoded arguments", counts.names["Encoder.encode"], 0)


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        pytest.param("postgres_url", marks=pytest.mark.postgres),
        pytest.param("redis_url", marks=pytest.mark.redis),
    ],
)
async def test_a_message_of_a_batch_is_neither_checked_nor_described_again(
    url: str, request: pytest.FixtureRequest
) -> None:
    url = url if "://" in url else request.getfixturevalue(url)
    async with OutboxBroker(url, create_tables=True, logger=None) as broker:
        counts = await cost(lambda: broker.publish_batch(*[BODY] * MANY, queue=QUEUE))

    exactly("messages checked", counts.names["Message.__post_init__"], 1)
    exactly("headers encoded", counts.names["encode_headers"], 1)
    if url.startswith("postgresql"):
        within("functions", counts.ours / MANY, 5)
    elif url.startswith("redis"):
        within("functions", counts.ours / MANY, 9)


@pytest.mark.postgres
async def test_one_message_is_one_plain_insert_and_a_batch_sends_its_bodies_alone(postgres_url: str) -> None:
    sent: list[str] = []
    connection = await asyncpg.connect(postgres_url)
    async with (
        OutboxBroker(postgres_url, create_tables=True, logger=None) as broker,
        connection.transaction(),
    ):
        # The driver asks once for each type of array.
        await broker.publish_batch(BODY, BODY, queue=QUEUE, session=connection)
        connection.add_query_logger(lambda record: sent.append(record.query))

        await broker.publish(BODY, QUEUE, session=connection)
        await broker.publish_batch(BODY, BODY, queue=QUEUE, session=connection)
        # The loggers are called by the event loop.
        await asyncio.sleep(0)
    await connection.close()

    one, batch, *_ = sent
    assert one.startswith("insert into")
    assert "unnest" not in one
    exactly("arrays", batch.count("[]"), batch.count("bytea[]"))


@pytest.mark.postgres
async def test_the_constraint_on_times_names_each_bound_once(postgres_url: str) -> None:
    async with OutboxBroker(postgres_url, create_tables=True, logger=None):
        connection = await asyncpg.connect(postgres_url)
        told = await connection.fetchval(
            "select pg_get_constraintdef(oid) from pg_constraint where conname = 'nightmail_messages_times'"
        )
        await connection.close()

    # The server prepares it for every statement: with a pair of bounds for each column that was half an insert.
    exactly("conversions", told.count("to_timestamp"), 2)
