"""Work in a transaction of synchronous code. Nothing here ever suspends: it can be driven without an event loop.

What is joined: a `Session`, `scoped_session` or `Connection` of SQLAlchemy, Django's connection in an atomic block, and
a connection of PyMySQL or mysqlclient. None of them is imported: a caller that holds one has done that.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase
from nightmail.store import Blocking
from nightmail.stores.mysql.callers import CallersSession, Known, Ours, who_we_are
from nightmail.stores.mysql.connect import Connect
from nightmail.stores.mysql.dialect import dialect_of
from nightmail.stores.mysql.lane import PUBLISH, Lane
from nightmail.stores.mysql.link import Answer
from nightmail.stores.mysql.retries import Retries
from nightmail.stores.mysql.text import Sql, lifted
from nightmail.stores.mysql.transaction import (
    DIALECTS,
    SYNCHRONOUS,
    Joined,
    Session,
    is_asynchronous,
    is_synchronous,
)
from nightmail.stores.sql.callers_objects import asynchronous, blocking_connection, django_connection

if TYPE_CHECKING:
    from sqlalchemy import Connection

T = TypeVar("T")

_DRIVERS: Final = frozenset({"pymysql", "mysqldb"})
"""SQLAlchemy's names for them."""
_IN_TRANSACTION: Final = 1
"""A bit of the status that comes with each answer of the server."""


class BlockingCallers:
    """Callers with a transaction of synchronous code, of a store that may never have been opened."""

    def __init__(self, connect: Connect, identity: Sql, known: Known, retries: Retries) -> None:
        self._connect = connect
        self._identity = identity
        self._known = known
        self._retries = retries

    async def join(self, transaction: Blocking, work: Callable[[CallersSession], Awaitable[T]]) -> T:
        """Run this in the caller's transaction, or refuse."""
        session = Joined(_session(transaction.session))
        if not self._known.opened:
            return await work(CallersSession(session, await self._seen_by(session), self._identity))
        known = self._known.ours
        try:
            return await work(CallersSession(session, known or self._learn(), self._identity))
        except OtherDatabase:
            # Unless the tables were recreated since we read their identity.
            if known is None or (learned := self._learn()) == known:
                raise
            return await work(CallersSession(session, learned, self._identity))

    async def _seen_by(self, session: Session) -> Ours:
        """The tables that this session sees, and the kind of server they are on."""
        found = await session.ask(f"select identity, version() from ({self._identity}) as meta")  # noqa: S608 - ours
        if not found.rows:
            raise OtherDatabase("the session's database does not have our tables")
        identity, version = found.rows[0]
        return Ours(bytes(identity), dialect_of(str(version)))

    def _learn(self) -> Ours:
        """Read our identity on a new connection, on another thread: this code cannot await one."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="nightmail") as thread:
            self._known.ours = ours = thread.submit(asyncio.run, self._read()).result()
        return ours

    async def _read(self) -> Ours:
        lane = Lane(PUBLISH, self._connect, self._retries)
        try:
            return await lane.run(lambda link: who_we_are(link, self._identity))
        finally:
            await lane.close()


class _Direct:
    """A connection of a synchronous driver."""

    def __init__(self, connection: Any, cursor: Any) -> None:
        self._connection = connection
        self._cursor = cursor

    async def ask(self, statement: str) -> Answer:
        """See `Session.ask`."""
        # Rows as tuples, whatever a caller's connection returns by default.
        with closing(self._connection.cursor(self._cursor)) as cursor:
            cursor.execute(statement)
            rows = cursor.fetchall() if cursor.description else ()
            return Answer(rows, cursor.lastrowid or 0)


class _ThroughSqlalchemy:
    """A synchronous SQLAlchemy connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def ask(self, statement: str) -> Answer:
        """See `Session.ask`."""
        text, values = lifted(statement)
        result = self._connection.exec_driver_sql(text, values or None)
        if result.returns_rows:
            return Answer([tuple(row) for row in result.all()], 0)
        last_id = result.lastrowid or 0
        result.close()
        return Answer((), last_id)


def _session(session: object) -> Session:
    """Where statements go in this transaction, or a refusal that says what to pass instead."""
    if is_synchronous(session):
        return _direct(session)
    if (connection := blocking_connection(session)) is not None:
        return _ThroughSqlalchemy(_of_our_drivers(connection))
    if (wrapper := django_connection(session)) is not None:
        return _below_django(wrapper)
    if is_asynchronous(session):
        raise asynchronous(session)
    raise CannotJoin(
        f"a {type(session).__name__} is no synchronous transaction that the MySQL store can join: pass a Session or "
        "Connection of SQLAlchemy, Django's connection, or a PyMySQL connection that is in one"
    )


def _direct(connection: Any) -> _Direct:
    # With autocommit off there is always a transaction: the first statement begins it.
    if not connection.open or (connection.get_autocommit() and not _has_begun(connection)):
        raise NotInTransaction(
            "this connection is not in a transaction: turn autocommit off, or begin one with `connection.begin()` "
            "(of mysqlclient only the former can be seen)"
        )
    return _Direct(connection, _plain_cursor(connection))


def _has_begun(connection: Any) -> bool:
    # mysqlclient does not report it.
    return bool(getattr(connection, "server_status", 0) & _IN_TRANSACTION)


def _plain_cursor(connection: Any) -> Any:
    for connections, cursors in SYNCHRONOUS.items():
        module: Any = sys.modules.get(connections)
        if module is not None and isinstance(connection, module.Connection):
            return sys.modules[cursors].Cursor
    raise AssertionError


def _below_django(wrapper: Any) -> _Direct:
    if wrapper.vendor != "mysql":
        raise OtherDatabase(f"the connection belongs to {wrapper.vendor}, and the messages are in MySQL")
    # Raises Django's own error if the transaction is broken.
    wrapper.validate_no_broken_transaction()
    # The driver's cursor, not Django's: that one logs each statement, and ours contain the message.
    return _direct(wrapper.connection)


def _of_our_drivers(connection: Connection) -> Connection:
    dialect = connection.dialect
    if dialect.name not in DIALECTS:
        raise OtherDatabase(f"the session belongs to {dialect.name}, and the messages are in MySQL")
    if dialect.driver not in _DRIVERS:
        raise CannotJoin(f"a session on {dialect.driver} cannot be joined: use pymysql or mysqlclient")
    driver: Any = connection.connection.driver_connection
    # It may be set for the whole engine, which the connection's own options do not show.
    if driver.get_autocommit() and not _has_begun(driver):
        raise NotInTransaction(
            "this connection is in AUTOCOMMIT: it has no transaction that could carry the message"
        )
    return connection
