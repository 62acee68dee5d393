"""Connections whose transactions asynchronous callers may join: SQLAlchemy on aiosqlite, or aiosqlite itself.

Those of synchronous code are in `blocking`.
"""

from __future__ import annotations

import sqlite3
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase, StaleTransaction
from nightmail.stores.sql.callers_objects import sqlalchemy_connection, synchronous
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Verb
from nightmail.stores.sqlite.errors import translated
from nightmail.stores.sqlite.queries import Row

if TYPE_CHECKING:
    from aiosqlite import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

CLOSED: Final = "this connection is closed: publish before its transaction ends"
_COMMITS_BY_ITSELF: Final = (
    "this connection commits every statement by itself, so that no transaction could carry the message:"
    " begin with nightmail.stores.sqlite.begin_immediate(engine)"
)
_NOTHING: Final = Ask(Statement("nothing", "SELECT 1", ()), {})
_BEGIN: Final = Ask(Statement("begin", "BEGIN IMMEDIATE", ()), {})
_ROWS: Final = (None, sqlite3.Row)
"""Row factories whose rows become tuples. Others may make anything of a row."""


class Caller(ABC):
    """An aiosqlite connection, direct or underneath SQLAlchemy's."""

    def __init__(self, driver: Connection) -> None:
        self.driver = driver

    @abstractmethod
    def begin(self) -> Verb[bool]:
        """Make sure that a transaction has begun. Returns whether it certainly has the write lock."""

    async def send(self, ask: Ask) -> list[Row]:
        """Run a statement and return its rows."""
        try:
            return await self._execute(ask)
        except Exception as error:
            failed = original(error)
            if failed is None:
                raise
        raise failed

    @abstractmethod
    async def _execute(self, ask: Ask) -> list[Row]: ...


async def caller_of(transaction: object) -> Caller:
    """The connection of this transaction, if we can join it."""
    connection = await sqlalchemy_connection(transaction)
    if connection is not None:
        return await _of_sqlalchemy(connection)
    driver: Any = sys.modules.get("aiosqlite")
    if driver is not None and isinstance(transaction, driver.Connection):
        if not _in_transaction(transaction):
            raise NotInTransaction
        return _OfDriver(transaction)
    if isinstance(transaction, sqlite3.Connection):
        raise synchronous(transaction)
    raise CannotJoin(
        f"a {type(transaction).__name__} is not a transaction of SQLite that can be joined:"
        " pass an AsyncSession, an AsyncConnection or an aiosqlite.Connection"
    )


async def _of_sqlalchemy(connection: AsyncConnection) -> Caller:
    dialect = connection.dialect
    if dialect.name != "sqlite":
        raise other_kind(dialect.name)
    if dialect.driver != "aiosqlite":
        raise CannotJoin(
            f"a connection of the driver {dialect.driver} cannot be joined: use sqlite+aiosqlite"
        )
    driver = (await connection.get_raw_connection()).driver_connection
    return _OfSQLAlchemy(connection, driver)


class _OfSQLAlchemy(Caller):
    def __init__(self, connection: AsyncConnection, driver: Any) -> None:
        super().__init__(driver)
        self._connection = connection

    def begin(self) -> Verb[bool]:
        return begin_in_sqlalchemy(self._connection, self.driver)

    async def _execute(self, ask: Ask) -> list[Row]:
        result = await self._connection.exec_driver_sql(ask.statement.text, dict(ask.values))
        return [tuple(row) for row in result] if result.returns_rows else []


class _OfDriver(Caller):
    def begin(self) -> Verb[bool]:
        return already_begun()

    async def _execute(self, ask: Ask) -> list[Row]:
        if self.driver.row_factory in _ROWS:
            # One call to the connection's thread, where a cursor of ours takes four: they are most of what this costs.
            return [tuple(row) for row in await self.driver.execute_fetchall(ask.statement.text, ask.values)]
        async with self.driver.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(ask.statement.text, ask.values)
            return [tuple(row) for row in await cursor.fetchall()]


def begin_in_sqlalchemy(connection: Any, driver: Any) -> Verb[bool]:
    """Begin the transaction of a SQLAlchemy connection, if neither it nor a listener has."""
    if not connection.in_transaction():
        # SQLAlchemy begins with the first statement and calls its listeners, which may begin in their own way.
        yield _NOTHING
    if driver.in_transaction:
        return False
    if driver.isolation_level is None or _commits_by_itself(driver):
        raise NotInTransaction(_COMMITS_BY_ITSELF)
    # SQLAlchemy reports a transaction, but the driver begins it only before a statement whose first word it knows
    # as a write. Ours may start otherwise: it would be committed at once, whatever the caller decides.
    yield _BEGIN
    return True


def already_begun() -> Verb[bool]:
    """The caller has begun, in its own way."""
    return False
    yield


def original(error: Exception, *, when_stale: str | None = None) -> Exception | None:
    """The store's error for that of a statement; `None` if it is not SQLite's.

    SQLAlchemy's error shows the values of the statement. The driver's own error, wrapped in it, does not.
    """
    of_driver = getattr(error, "orig", error)
    if not isinstance(of_driver, sqlite3.Error):
        return None
    meant = translated(of_driver)
    return StaleTransaction(when_stale) if isinstance(meant, StaleTransaction) else meant


def other_kind(name: str) -> OtherDatabase:
    """The error for a session of another kind of database."""
    return OtherDatabase(f"the session belongs to a {name} database, and the store to an SQLite file")


def _commits_by_itself(driver: object) -> bool:
    """Whether it was opened with `autocommit=True` (Python 3.12+): then its `commit` does nothing."""
    return getattr(getattr(driver, "_conn", driver), "autocommit", None) is True


def _in_transaction(connection: Connection) -> bool:
    try:
        return connection.in_transaction
    except ValueError:
        raise NotInTransaction(CLOSED) from None
