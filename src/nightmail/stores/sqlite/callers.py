"""Connections whose transactions asynchronous callers may join: SQLAlchemy on aiosqlite, or aiosqlite itself.

Those of synchronous code are in `blocking`.
"""

from __future__ import annotations

import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase, StaleTransaction
from nightmail.stores.sql.callers_objects import sqlalchemy_connection, synchronous
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sqlite.errors import translated
from nightmail.stores.sqlite.steps import Ask, Row

if TYPE_CHECKING:
    from aiosqlite import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

NOTHING: Final = Ask(Statement("nothing", "SELECT 1", ()), {})
BEGIN: Final = Ask(Statement("begin", "BEGIN IMMEDIATE", ()), {})


CLOSED: Final = "this connection is closed: publish before its transaction ends"
COMMITS_BY_ITSELF: Final = (
    "this connection commits every statement by itself, so that no transaction could carry the message:"
    " begin with nightmail.stores.sqlite.begin_immediate(engine)"
)


class Caller(ABC):
    """A caller's connection, and how to run statements on it."""

    when_stale: ClassVar[str | None] = None
    """The error message when another connection wrote after this transaction read; `None` for the default."""

    async def ask(self, ask: Ask) -> list[Row]:
        """Run a statement and return its rows."""
        try:
            return await self._ask(ask.statement.text, ask.values)
        except Exception as error:
            # SQLAlchemy's error shows the values of the statement. The driver's own error, wrapped in it, does not.
            original = getattr(error, "orig", error)
            if not isinstance(original, sqlite3.Error):
                raise
            failed = translated(original)
        raise StaleTransaction(self.when_stale) if isinstance(failed, StaleTransaction) else failed

    @abstractmethod
    async def begin(self) -> bool:
        """Make sure that a transaction has begun. Returns whether it certainly has the write lock."""

    @abstractmethod
    async def _ask(self, text: str, values: Mapping[str, Any]) -> list[Row]: ...


class AwaitedCaller(Caller):
    """An aiosqlite connection, direct or underneath SQLAlchemy's."""

    def __init__(self, driver: Connection) -> None:
        self.driver = driver


async def caller_of(transaction: object) -> AwaitedCaller:
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


async def _of_sqlalchemy(connection: AsyncConnection) -> AwaitedCaller:
    dialect = connection.dialect
    if dialect.name != "sqlite":
        raise other_kind(dialect.name)
    if dialect.driver != "aiosqlite":
        raise CannotJoin(
            f"a connection of the driver {dialect.driver} cannot be joined: use sqlite+aiosqlite"
        )
    driver = (await connection.get_raw_connection()).driver_connection
    return _OfSQLAlchemy(connection, driver)


class _OfSQLAlchemy(AwaitedCaller):
    def __init__(self, connection: AsyncConnection, driver: Any) -> None:
        super().__init__(driver)
        self._connection = connection

    async def begin(self) -> bool:
        if not self._connection.in_transaction():
            # SQLAlchemy begins with the first statement and calls its listeners, which may begin in their own way.
            _ = await self.ask(NOTHING)
        if self.driver.in_transaction:
            return False
        if self.driver.isolation_level is None or commits_by_itself(getattr(self.driver, "_conn", None)):
            raise NotInTransaction(COMMITS_BY_ITSELF)
        # SQLAlchemy reports a transaction, but the driver begins it only before a statement whose first word it knows
        # as a write. Ours may start otherwise: it would be committed at once, whatever the caller decides.
        _ = await self.ask(BEGIN)
        return True

    async def _ask(self, text: str, values: Mapping[str, Any]) -> list[Row]:
        result = await self._connection.exec_driver_sql(text, dict(values))
        return [tuple(row) for row in result] if result.returns_rows else []


class _OfDriver(AwaitedCaller):
    async def begin(self) -> bool:
        return False

    async def _ask(self, text: str, values: Mapping[str, Any]) -> list[Row]:
        async with self.driver.cursor() as cursor:
            # The connection may have its own row factory.
            cursor.row_factory = None
            await cursor.execute(text, values)
            return [tuple(row) for row in await cursor.fetchall()]


def other_kind(name: str) -> OtherDatabase:
    """The error for a session of another kind of database."""
    return OtherDatabase(f"the session belongs to a {name} database, and the store to an SQLite file")


def commits_by_itself(driver: object) -> bool:
    """Whether it was opened with `autocommit=True` (Python 3.12+): then its `commit` does nothing."""
    return getattr(driver, "autocommit", None) is True


def _in_transaction(connection: Connection) -> bool:
    try:
        return connection.in_transaction
    except ValueError:
        raise NotInTransaction(CLOSED) from None
