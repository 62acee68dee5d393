"""A caller's transaction in synchronous code.

The same verbs run in it as in any other. They are coroutines that never suspend: the caller's own driver runs each
statement before it returns.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from nightmail.errors import CannotJoin, OtherDatabase
from nightmail.stores.postgres.transaction import (
    Joined,
    driver_connection_of_ours,
    for_driver,
    refuse_unless_in_transaction,
)
from nightmail.stores.sql.callers_objects import asynchronous, blocking_connection, django_connection
from nightmail.stores.sql.statements import Statement

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy


class ThroughSqlalchemy:
    """A caller's SQLAlchemy connection."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self._connection = connection

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        text, arguments = for_driver(self._connection.dialect.driver, statement, values)
        result = self._connection.exec_driver_sql(text, arguments)
        return result.mappings().all() if result.returns_rows else []


class ThroughPsycopg:
    """A caller's psycopg connection. The cursor is ours: theirs may return rows in any form."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        driver: Any = sys.modules["psycopg"]
        with driver.RawCursor(self._connection, row_factory=driver.rows.dict_row) as cursor:
            cursor.execute(statement.text, statement.arguments(values))
            found: list[Any] = cursor.fetchall() if cursor.description else []
            return found


class ThroughDjango:
    """A caller's Django connection, inside an atomic block."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        with self._wrapper.cursor() as cursor:
            cursor.execute(statement.formatted, {name: values[name] for name in statement.parameters})
            if not cursor.description:
                return []
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def join_blocking(session: object) -> Joined:
    """The session of this transaction, or an error that says what to pass instead."""
    connection = blocking_connection(session)
    if connection is not None:
        driver_connection = driver_connection_of_ours(connection)
        return Joined(ThroughSqlalchemy(connection), driver_connection)
    wrapper = django_connection(session)
    if wrapper is not None:
        if wrapper.vendor != "postgresql":
            raise OtherDatabase(
                f"Django's connection {wrapper.alias!r} belongs to {wrapper.vendor}, and the messages are in Postgres"
            )
        return Joined(ThroughDjango(wrapper), wrapper.connection)
    psycopg: Any = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(session, psycopg.Connection):
        refuse_unless_in_transaction(session)
        return Joined(ThroughPsycopg(session), session)
    if isinstance(session, asyncpg.Connection | PoolConnectionProxy) or (
        psycopg is not None and isinstance(session, psycopg.AsyncConnection)
    ):
        raise asynchronous(session)
    raise CannotJoin(
        f"a {type(session).__name__} is no transaction that the Postgres store can join: pass a Session or Connection "
        "of SQLAlchemy on psycopg, a connection of psycopg, or `django.db.connection`"
    )
