"""Statements in the transaction of synchronous code.

What is joined: a `Session`, `scoped_session` or `Connection` of SQLAlchemy, Django's connection in an atomic block, and
a connection of PyMySQL or mysqlclient. None of them is imported: a caller that holds one has done that.
"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, Protocol

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase
from nightmail.stores.mysql.callers import (
    DIALECTS,
    SYNCHRONOUS,
    answer_of,
    is_asynchronous,
    is_synchronous,
)
from nightmail.stores.mysql.requests import Answer
from nightmail.stores.mysql.text import lifted
from nightmail.stores.sql.callers_objects import asynchronous, blocking_connection, django_connection

if TYPE_CHECKING:
    from sqlalchemy import Connection

_DRIVERS: Final = frozenset({"pymysql", "mysqldb"})
"""SQLAlchemy's names for them."""
_IN_TRANSACTION: Final = 1
"""A bit of the status that comes with each answer of the server."""


class BlockingSession(Protocol):
    """Where a caller's statements go. Errors are those of the caller's driver."""

    def send(self, statement: str) -> Answer:
        """Run this statement."""
        ...


class _Direct:
    """A driver connection."""

    def __init__(self, connection: Any, cursor: Any) -> None:
        self._connection = connection
        self._cursor = cursor

    def send(self, statement: str) -> Answer:
        """See `BlockingSession.send`."""
        # Rows as tuples, whatever a caller's connection returns by default.
        with closing(self._connection.cursor(self._cursor)) as cursor:
            cursor.execute(statement)
            rows = cursor.fetchall() if cursor.description else ()
            return Answer(rows, cursor.lastrowid or 0)


class _ThroughSqlalchemy:
    """A SQLAlchemy connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, statement: str) -> Answer:
        """See `BlockingSession.send`."""
        text, values = lifted(statement)
        return answer_of(self._connection.exec_driver_sql(text, values or None))


def blocking_session_of(session: object) -> BlockingSession:
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
