"""Every error of a driver on the store's connections is one of ours, with the driver's as its cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncmy.errors
import pymysql.err
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from nightmail.errors import (
    NightmailError,
    NotAllowed,
    PublishUncertain,
    Refused,
    SchemaMissing,
    StoreUnavailable,
)
from nightmail.stores.mysql import MySQLStore, lane
from nightmail.stores.mysql.errors import TooLarge
from nightmail.stores.sql.lane import Locked
from nightmail.testing.conformance.build import QUEUE, message
from tests.stores.mysql.support import connection, execute, run, sqlalchemy_url, watched_store
from tests.stores.shared.silent import silent_server
from tests.stores.support import claim

pytestmark = pytest.mark.mysql

DRIVERS = {"asyncmy": asyncmy.errors, "aiomysql": pymysql.err}


@pytest.fixture(params=list(DRIVERS))
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@asynccontextmanager
async def store_on(url: str, driver: str) -> AsyncIterator[Any]:
    """A store on connections of this driver, and what stands between them."""
    engine = create_async_engine(sqlalchemy_url(url, driver))
    try:
        async with watched_store(engine) as found:
            yield found
    finally:
        await engine.dispose()


# What a server or a driver may answer, how it is raised, and what it becomes.
ANSWERS: list[tuple[str, int | None, str, type[NightmailError]]] = [
    ("ProgrammingError", 1064, "You have an error in your SQL syntax", Refused),
    ("DataError", 1406, "Data too long for column 'queue' at row 1", Refused),
    ("OperationalError", 4025, "CONSTRAINT `nightmail_messages_priority` failed", Refused),
    ("OperationalError", 1644, "a trigger's own words", Refused),
    ("ProgrammingError", 1146, "Table 'shop.nightmail_messages' doesn't exist", SchemaMissing),
    ("OperationalError", 1142, "INSERT command denied to user 'x'@'y'", NotAllowed),
    ("OperationalError", 1114, "The table is full", StoreUnavailable),
    ("OperationalError", 1290, "The server is running with the --read-only option", StoreUnavailable),
    ("OperationalError", 1317, "Query execution was interrupted", StoreUnavailable),
    (
        "OperationalError",
        1969,
        "Query execution was interrupted (max_statement_time exceeded)",
        StoreUnavailable,
    ),
    ("OperationalError", 1047, "WSREP has not yet prepared node for application use", StoreUnavailable),
    ("OperationalError", 1053, "Server shutdown in progress", PublishUncertain),
    ("OperationalError", 1927, "Connection was killed", PublishUncertain),
    ("OperationalError", 2006, "MySQL server has gone away", PublishUncertain),
    ("OperationalError", 2013, "Lost connection to MySQL server during query", PublishUncertain),
    ("OperationalError", 2014, "Command Out of Sync", PublishUncertain),
    ("InterfaceError", 0, "Not connected", PublishUncertain),
    ("InternalError", None, "Packet sequence number wrong - got 1 expected 2", PublishUncertain),
    ("ProgrammingError", None, "Cursor closed", PublishUncertain),
]
ODD: list[Exception] = [
    ConnectionResetError("gone"),
    asyncio.IncompleteReadError(b"", 4),
    RuntimeError("readexactly() called while another coroutine is already waiting for incoming data"),
    AttributeError("'NoneType' object has no attribute 'write'"),
    IndexError("index out of range"),
]


def publish(store: MySQLStore) -> Any:
    return store.publish(message())


@pytest.mark.parametrize(("kind", "number", "words", "ours"), ANSWERS)
async def test_what_a_driver_raises_becomes_ours(
    mysql_url: str,
    driver: str,
    kind: str,
    number: int | None,
    words: str,
    ours: type[NightmailError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = (words,) if number is None else (number, words)
    theirs: Exception = getattr(DRIVERS[driver], kind)(*arguments)
    await assert_raised(mysql_url, driver, theirs, ours, monkeypatch)


@pytest.mark.parametrize("theirs", ODD, ids=lambda error: type(error).__name__)
async def test_whatever_else_a_driver_raises_means_that_the_connection_is_lost(
    mysql_url: str, driver: str, theirs: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    await assert_raised(mysql_url, driver, theirs, PublishUncertain, monkeypatch)


async def assert_raised(
    url: str, driver: str, theirs: Exception, ours: type[NightmailError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_on(url, driver) as (store, _):

        async def ask(_connection: object, _text: str) -> None:
            raise theirs

        with monkeypatch.context() as patch:
            patch.setattr("nightmail.stores.mysql.link.ask", ask)
            with pytest.raises(NightmailError) as raised:
                await publish(store)

        assert type(raised.value) is ours
        assert raised.value.__cause__ is theirs or ours is StoreUnavailable
        assert await store.publish(message(b"and on")) is not None


async def test_connections_that_the_server_ended_are_told_in_our_words(mysql_url: str, driver: str) -> None:
    async with store_on(mysql_url, driver) as (store, _):
        for _ in range(10):
            await store.publish(message())
            link = store._opening.now.publish_lane.link
            await run(mysql_url, f"kill {link.connection.thread_id()}")
            results = await asyncio.gather(*(publish(store) for _ in range(3)), return_exceptions=True)

            errors = [result for result in results if isinstance(result, BaseException)]
            assert all(isinstance(error, StoreUnavailable) for error in errors), errors


async def test_a_locked_row_and_what_is_too_large_are_told_in_our_words(
    mysql_url: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_on(mysql_url, driver) as (store, _), connection(mysql_url) as own:
        await store.publish(message(timer_id="t"))
        await own.begin()
        await execute(own, "select 1 from nightmail_messages for update")
        monkeypatch.setattr(asyncio.get_running_loop(), "time", _in_leaps(asyncio.get_running_loop().time))
        with pytest.raises(Locked):
            await store.cancel(QUEUE, "t")
        await own.rollback()

        assert store._opening.now is not None
        link = store._opening.now.publish_lane.link
        assert link is not None
        link._largest_packet = 2000
        with pytest.raises(TooLarge):
            await store.publish(message(b"x" * 2000))


def _in_leaps(time: Callable[[], float]) -> Callable[[], float]:
    """A clock that goes fast, so that the test does not wait for a time-out."""
    begun = time()
    return lambda: begun + (time() - begun) * 100


# -------------------------------------------------------------------------- outside of transactions


def begins(own: Any) -> None:
    cursor = own.cursor()
    cursor.execute("begin")
    cursor.close()


def selects(own: Any) -> None:
    cursor = own.cursor()
    cursor.execute("select count(*) from information_schema.tables")
    cursor.fetchall()
    cursor.close()


def leaves_autocommit_off(own: Any) -> None:
    cursor = own.cursor()
    cursor.execute("set session autocommit = 0")
    cursor.close()
    selects(own)


@pytest.mark.parametrize("listener", [begins, selects, leaves_autocommit_off])
@pytest.mark.parametrize("when", ["connect", "checkout"])
async def test_a_listener_that_leaves_a_transaction_open_costs_no_message(
    mysql_url: str, driver: str, listener: Callable[[Any], None], when: str
) -> None:
    engine = create_async_engine(sqlalchemy_url(mysql_url, driver))
    event.listen(engine.sync_engine.pool, when, lambda own, *_: listener(own))
    store = MySQLStore(engine)
    await store.open()
    try:
        await store.migrate()
        assert await store.publish(message(b"plain")) is not None
        assert await store.publish(message(b"timer", timer_id="t")) is not None
        assert await run(mysql_url, "select count(*) from nightmail_messages") == [(2,)]
        assert len(await claim(store, limit=1)) == 1
        assert await run(mysql_url, "select count(*) from nightmail_messages where token is not null") == [
            (1,)
        ]
    finally:
        await store.close()
        await engine.dispose()
    assert await run(mysql_url, "select count(*) from nightmail_messages") == [(2,)]


async def test_a_transaction_that_is_left_open_is_noticed_and_not_taken_for_success(
    mysql_url: str, driver: str
) -> None:
    async with store_on(mysql_url, driver) as (store, interference):
        await store.publish(message(b"before"))

        async def leave_open(own: Any) -> None:
            await own.ask("begin", "select 1 from nightmail_messages")

        with pytest.raises(StoreUnavailable, match="left open"):
            await store._opening.now.publish_lane.run(leave_open)
        assert store._opening.now.publish_lane.link is None

        # Begun by something else, between two verbs.
        await store.publish(message(b"after"))
        link: Any = store._opening.now.publish_lane.link
        await link.ask("begin", "select 1 from nightmail_messages")
        await store.publish(message(b"still"))
        assert store._opening.now.publish_lane.link is not link
        assert await run(mysql_url, "select count(*) from nightmail_messages") == [(3,)]
        assert interference.open >= 1


# ------------------------------------------------------------------------------------------ closing


async def refusal(source: Any) -> str:
    store = MySQLStore(source)
    await store.open()
    try:
        with pytest.raises(StoreUnavailable) as raised:
            await store.ping()
    finally:
        await store.close()
    assert "hunter2" not in repr(raised.value) + repr(raised.value.__cause__)
    return str(raised.value)


async def test_a_server_that_does_not_answer_is_told_with_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "CONNECT_SECONDS", 0.2)
    async with silent_server() as port:
        url = f"mysql://shop:hunter2@127.0.0.1:{port}/shop"
        engine = create_async_engine(sqlalchemy_url(url))
        for source in (url, engine):
            assert await refusal(source) == (
                f"cannot connect to MySQL or MariaDB at 127.0.0.1:{port}, database 'shop', as user 'shop': "
                "no answer in time"
            )
        await engine.dispose()
