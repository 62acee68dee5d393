"""Connections whose transactions synchronous code may publish in: SQLAlchemy, Django, or `sqlite3` itself."""

from __future__ import annotations

import sqlite3
import sys
from abc import ABC, abstractmethod
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar

from nightmail.errors import CannotJoin, NotInTransaction
from nightmail.stores.sql.callers_objects import asynchronous, blocking_connection, django_connection
from nightmail.stores.sql.verbs import Ask, Verb
from nightmail.stores.sqlite.callers import (
    CLOSED,
    already_begun,
    begin_in_sqlalchemy,
    original,
    other_kind,
)
from nightmail.stores.sqlite.queries import Row

if TYPE_CHECKING:
    from sqlalchemy import Connection


class BlockingCaller(ABC):
    """A connection of synchronous code."""

    when_stale: ClassVar[str | None] = None
    """The error message when another connection wrote after this transaction read; `None` for the default."""

    @abstractmethod
    def begin(self) -> Verb[bool]:
        """Make sure that a transaction has begun. Returns whether it certainly has the write lock."""

    def send(self, ask: Ask) -> list[Row]:
        """Run a statement and return its rows."""
        try:
            return self._execute(ask)
        except Exception as error:
            failed = original(error, when_stale=self.when_stale)
            if failed is None:
                raise
        raise failed

    @abstractmethod
    def _execute(self, ask: Ask) -> list[Row]: ...


def blocking_caller(session: object) -> BlockingCaller:
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


def _of_sqlalchemy(connection: Connection) -> BlockingCaller:
    dialect = connection.dialect
    if dialect.name != "sqlite":
        raise other_kind(dialect.name)
    if dialect.driver != "pysqlite":
        raise CannotJoin(
            f"a connection of the driver {dialect.driver} cannot be joined by synchronous code: use sqlite+pysqlite"
        )
    return _OfSQLAlchemy(connection, connection.connection.driver_connection)


def _of_django(wrapper: Any) -> BlockingCaller:
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


class _OfSQLAlchemy(BlockingCaller):
    def __init__(self, connection: Connection, driver: Any) -> None:
        self._connection = connection
        self._driver = driver

    def begin(self) -> Verb[bool]:
        return begin_in_sqlalchemy(self._connection, self._driver)

    def _execute(self, ask: Ask) -> list[Row]:
        result = self._connection.exec_driver_sql(ask.statement.text, dict(ask.values))
        return [tuple(row) for row in result] if result.returns_rows else []


class _OfDriver(BlockingCaller):
    def __init__(self, driver: sqlite3.Connection) -> None:
        self._driver = driver

    def begin(self) -> Verb[bool]:
        return already_begun()

    def _execute(self, ask: Ask) -> list[Row]:
        with closing(self._driver.cursor()) as cursor:
            # The connection may have its own row factory.
            cursor.row_factory = None
            cursor.execute(ask.statement.text, ask.values)
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
