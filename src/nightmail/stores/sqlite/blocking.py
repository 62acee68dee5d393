"""Connections whose transactions synchronous code may publish in: SQLAlchemy, Django, or `sqlite3` itself.

Their methods are coroutines like those of any caller, so that the same steps can run on them, but none of them ever
suspends: each runs to its end in one go.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from nightmail.errors import CannotJoin, NotInTransaction
from nightmail.stores.sql.callers_objects import asynchronous, blocking_connection, django_connection
from nightmail.stores.sqlite.callers import (
    BEGIN,
    CLOSED,
    COMMITS_BY_ITSELF,
    NOTHING,
    Caller,
    commits_by_itself,
    other_kind,
)
from nightmail.stores.sqlite.steps import Row

if TYPE_CHECKING:
    from sqlalchemy import Connection


def blocking_caller(session: object) -> Caller:
    """The connection of this synchronous transaction, if we can join it."""
    if isinstance(session, sqlite3.Connection):
        if not _in_transaction(session):
            raise NotInTransaction(
                "this connection is not inside a transaction: execute BEGIN IMMEDIATE on it, publish, and commit it"
            )
        return _OfDriver(session)
    connection = blocking_connection(session)
    if connection is not None:
        return _of_sqlalchemy(connection)
    wrapper = django_connection(session)
    if wrapper is not None:
        return _of_django(wrapper)
    driver: Any = sys.modules.get("aiosqlite")
    if driver is not None and isinstance(session, driver.Connection):
        raise asynchronous(session)
    raise CannotJoin(
        f"a {type(session).__name__} is not a transaction of SQLite that synchronous code could publish in:"
        " pass a Session, a Connection of SQLAlchemy, Django's connection or a sqlite3.Connection"
    )


def _of_sqlalchemy(connection: Connection) -> Caller:
    dialect = connection.dialect
    if dialect.name != "sqlite":
        raise other_kind(dialect.name)
    if dialect.driver != "pysqlite":
        raise CannotJoin(
            f"a connection of the driver {dialect.driver} cannot be joined by synchronous code: use sqlite+pysqlite"
        )
    return _OfSQLAlchemy(connection, connection.connection.driver_connection)


def _of_django(wrapper: Any) -> Caller:
    if wrapper.vendor != "sqlite":
        raise other_kind(wrapper.vendor)
    if wrapper.needs_rollback:
        raise NotInTransaction(
            "Django rolls this transaction back, whatever is published in it: leave the atomic block first"
        )
    if not _in_transaction(wrapper.connection):
        raise NotInTransaction(
            "this connection of Django commits every statement by itself: publish inside `transaction.atomic()`"
        )
    return _OfDjango(wrapper.connection)


class _OfSQLAlchemy(Caller):
    def __init__(self, connection: Connection, driver: Any) -> None:
        self._connection = connection
        self._driver = driver

    async def begin(self) -> bool:
        # For the same reasons as with SQLAlchemy on aiosqlite.
        if not self._connection.in_transaction():
            _ = await self.ask(NOTHING)
        if self._driver.in_transaction:
            return False
        if self._driver.isolation_level is None or commits_by_itself(self._driver):
            raise NotInTransaction(COMMITS_BY_ITSELF)
        _ = await self.ask(BEGIN)
        return True

    async def _ask(self, text: str, values: Mapping[str, Any]) -> list[Row]:
        result = self._connection.exec_driver_sql(text, dict(values))
        return [tuple(row) for row in result] if result.returns_rows else []


class _OfDriver(Caller):
    def __init__(self, driver: sqlite3.Connection) -> None:
        self._driver = driver

    async def begin(self) -> bool:
        return False

    async def _ask(self, text: str, values: Mapping[str, Any]) -> list[Row]:
        with closing(self._driver.cursor()) as cursor:
            # The connection may have its own row factory.
            cursor.row_factory = None
            cursor.execute(text, values)
            return cursor.fetchall()


class _OfDjango(_OfDriver):
    """Bypasses Django's cursors: while `DEBUG` is on they log what they execute, payloads included."""

    when_stale = (
        "SQLite refused the write: this transaction read first, and another writer has committed since."
        ' Begin it with BEGIN IMMEDIATE: in Django\'s DATABASES, `"OPTIONS": {"transaction_mode": "IMMEDIATE"}`'
        " (since Django 5.1)."
    )


def _in_transaction(driver: sqlite3.Connection) -> bool:
    try:
        return driver.in_transaction
    except sqlite3.ProgrammingError:
        raise NotInTransaction(CLOSED) from None
