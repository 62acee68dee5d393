"""Statements in the transaction of a caller's asynchronous code, whatever object holds it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase
from nightmail.stores.mysql.link import ask, is_closed
from nightmail.stores.mysql.requests import Answer
from nightmail.stores.mysql.text import lifted
from nightmail.stores.sql.callers_objects import sqlalchemy_connection, synchronous

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

DIALECTS: Final = frozenset({"mysql", "mariadb"})
ASYNCHRONOUS: Final = ("asyncmy.connection", "aiomysql.connection")
SYNCHRONOUS: Final = {
    "pymysql.connections": "pymysql.cursors",
    "MySQLdb.connections": "MySQLdb.cursors",
}
"""Where drivers define their connections and cursors."""
_DRIVERS: Final = frozenset({"asyncmy", "aiomysql"})


class Session(Protocol):
    """Where a caller's statements go. Errors are those of the caller's driver."""

    async def send(self, statement: str) -> Answer:
        """Run this statement."""
        ...


class _Direct:
    """A driver connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def send(self, statement: str) -> Answer:
        """See `Session.send`."""
        return (await ask(self._connection, statement))[0]


class _ThroughSqlalchemy:
    """A SQLAlchemy connection."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def send(self, statement: str) -> Answer:
        """See `Session.send`."""
        text, values = lifted(statement)
        return answer_of(await self._connection.exec_driver_sql(text, values or None))


def answer_of(result: Any) -> Answer:
    """What a result of SQLAlchemy's says."""
    if result.returns_rows:
        return Answer([tuple(row) for row in result.all()], 0)
    last_id = result.lastrowid or 0
    result.close()
    return Answer((), last_id)


async def session_of(transaction: object) -> Session:
    """The session of this transaction, or a refusal that says what to pass instead."""
    if is_asynchronous(transaction):
        return _Direct(_in_transaction(transaction))
    if is_synchronous(transaction):
        raise synchronous(transaction)
    connection = await sqlalchemy_connection(transaction)
    if connection is None:
        raise CannotJoin(
            f"a {type(transaction).__name__} is no transaction that the MySQL store can join: pass an AsyncSession, "
            "an AsyncConnection, or an asyncmy or aiomysql connection that is in one"
        )
    return _ThroughSqlalchemy(_of_our_drivers(connection))


def is_asynchronous(transaction: object) -> bool:
    """Whether it is a connection of a driver whose answers are awaited."""
    return _is_connection(transaction, ASYNCHRONOUS)


def is_synchronous(transaction: object) -> bool:
    """Whether it is a connection of a driver that blocks."""
    return _is_connection(transaction, SYNCHRONOUS)


def _is_connection(transaction: object, where: Iterable[str]) -> bool:
    # Not imported here: a caller that holds such a connection has imported its driver already.
    modules: list[Any] = [sys.modules[name] for name in where if name in sys.modules]
    return any(isinstance(transaction, module.Connection) for module in modules)


def _in_transaction(connection: Any) -> Any:
    # With autocommit off there is always a transaction: the first statement begins it.
    if is_closed(connection) or (connection.get_autocommit() and not connection.get_transaction_status()):
        raise NotInTransaction(
            "this connection is not in a transaction: begin one with `await connection.begin()`, or turn autocommit off"
        )
    return connection


def _of_our_drivers(connection: AsyncConnection) -> AsyncConnection:
    dialect = connection.dialect
    if dialect.name not in DIALECTS:
        raise OtherDatabase(f"the session belongs to {dialect.name}, and the messages are in MySQL")
    if dialect.driver not in _DRIVERS:
        raise CannotJoin(f"a session on {dialect.driver} cannot be joined: use asyncmy or aiomysql")
    sync_connection = connection.sync_connection
    fairy: Any = None if sync_connection is None else sync_connection.connection
    driver: Any = getattr(fairy, "driver_connection", None)
    # It may be set for the whole engine, which the connection's own options do not show.
    if driver is not None and driver.get_autocommit() and not driver.get_transaction_status():
        raise NotInTransaction(
            "this connection is in AUTOCOMMIT: it has no transaction that could carry the message"
        )
    return connection
