"""Sends statements in a caller's transaction in synchronous code.

SQLAlchemy's asynchronous sessions come here too: they are its synchronous ones, run in a greenlet.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from nightmail.errors import CannotJoin, OtherDatabase
from nightmail.stores.postgres.callers import (
    Joined,
    driver_connection_of_ours,
    for_driver,
    refuse_unless_in_transaction,
)
from nightmail.stores.postgres.identity import TableIdentity
from nightmail.stores.sql.callers_objects import asynchronous, blocking_connection, django_connection
from nightmail.stores.sql.verbs import Ask, carry_out_blocking

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy


class BlockingJoined(Joined, ABC):
    """A transaction of synchronous code."""

    @abstractmethod
    def send(self, request: Any) -> Any:
        """Carry out one request of a verb; rows come with columns by name."""


class ThroughSqlalchemy(BlockingJoined):
    """A caller's SQLAlchemy connection."""

    def __init__(self, connection: sqlalchemy.Connection, tables: TableIdentity) -> None:
        super().__init__(driver_connection_of_ours(connection), tables)
        self._connection = connection

    def send(self, request: Any) -> Any:
        """See `BlockingJoined.send`."""
        if not isinstance(request, Ask):
            return carry_out_blocking(self.asks(request), self.send)
        text, arguments = for_driver(self._connection.dialect.driver, *self.tables.bound(request))
        result = self._connection.exec_driver_sql(text, arguments)
        return result.mappings().all() if result.returns_rows else []


class ThroughPsycopg(BlockingJoined):
    """A caller's psycopg connection. The cursor is ours: theirs may return rows in any form."""

    def __init__(self, connection: psycopg.Connection[Any], tables: TableIdentity) -> None:
        super().__init__(connection, tables)
        self._connection = connection

    def send(self, request: Any) -> Any:
        """See `BlockingJoined.send`."""
        if not isinstance(request, Ask):
            return carry_out_blocking(self.asks(request), self.send)
        statement, values = self.tables.bound(request)
        driver: Any = sys.modules["psycopg"]
        with driver.RawCursor(self._connection, row_factory=driver.rows.dict_row) as cursor:
            cursor.execute(statement.text, statement.arguments(values))
            return cursor.fetchall() if cursor.description else []


class ThroughDjango(BlockingJoined):
    """A caller's Django connection, inside an atomic block.

    The cursor is the driver's, not Django's: with `DEBUG` that one logs each statement with its values.
    """

    def __init__(self, wrapper: Any, tables: TableIdentity) -> None:
        # Raises Django's own error if the transaction is broken.
        wrapper.validate_no_broken_transaction()
        super().__init__(wrapper.connection, tables)
        self._connection = wrapper.connection

    def send(self, request: Any) -> Any:
        """See `BlockingJoined.send`."""
        if not isinstance(request, Ask):
            return carry_out_blocking(self.asks(request), self.send)
        statement, values = self.tables.bound(request)
        with self._connection.cursor() as cursor:
            cursor.execute(statement.formatted, {name: values[name] for name in statement.parameters})
            if not cursor.description:
                return []
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def joined_blocking(session: object, tables: TableIdentity) -> BlockingJoined:
    """The session of this transaction, or an error that says what to pass instead."""
    connection = blocking_connection(session)
    if connection is not None:
        return ThroughSqlalchemy(connection, tables)
    wrapper = django_connection(session)
    if wrapper is not None:
        if wrapper.vendor != "postgresql":
            raise OtherDatabase(
                f"Django's connection {wrapper.alias!r} belongs to {wrapper.vendor}, and the messages are in Postgres"
            )
        return ThroughDjango(wrapper, tables)
    psycopg: Any = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(session, psycopg.Connection):
        refuse_unless_in_transaction(session)
        return ThroughPsycopg(session, tables)
    if isinstance(session, asyncpg.Connection | PoolConnectionProxy) or (
        psycopg is not None and isinstance(session, psycopg.AsyncConnection)
    ):
        raise asynchronous(session)
    raise CannotJoin(
        f"a {type(session).__name__} is no transaction that the Postgres store can join: pass a Session or Connection "
        "of SQLAlchemy on psycopg, a connection of psycopg, or `django.db.connection`"
    )
