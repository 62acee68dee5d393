"""The connections a caller's transaction may live on: of SQLAlchemy over aiosqlite, or of aiosqlite itself."""

from __future__ import annotations

import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase
from nightmail.stores._sql import Statement
from nightmail.stores._transaction import sqlalchemy_connection
from nightmail.stores.sqlite.errors import translated
from nightmail.stores.sqlite.steps import Ask, Row

if TYPE_CHECKING:
    from aiosqlite import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

_NOTHING: Final = Ask(Statement("nothing", "SELECT 1", ()), {})
_BEGIN: Final = Ask(Statement("begin", "BEGIN IMMEDIATE", ()), {})


class Caller(ABC):
    """A caller's connection, and how it wants to be asked."""

    def __init__(self, driver: Connection) -> None:
        self.driver = driver

    async def ask(self, ask: Ask) -> list[Row]:
        """The rows that a statement gives."""
        try:
            return await self._ask(ask.statement.text, ask.values)
        except Exception as error:
            # What SQLAlchemy raises shows the values of the statement. The driver's own error, wrapped in it, does not.
            original = getattr(error, "orig", error)
            if not isinstance(original, sqlite3.Error):
                raise
            failed = translated(original)
        raise failed

    @abstractmethod
    async def begin(self) -> bool:
        """Make sure that a transaction has begun; whether it has the write lock for certain."""

    @abstractmethod
    async def _ask(self, text: str, values: Mapping[str, Any]) -> list[Row]: ...


async def caller_of(transaction: object) -> Caller:
    """The connection of this transaction, if we can take part in it."""
    connection = await sqlalchemy_connection(transaction)
    if connection is not None:
        return await _of_sqlalchemy(connection)
    driver: Any = sys.modules.get("aiosqlite")
    if driver is not None and isinstance(transaction, driver.Connection):
        if not _in_transaction(transaction):
            raise NotInTransaction
        return _OfDriver(transaction)
    raise CannotJoin(
        f"a {type(transaction).__name__} is not a transaction of SQLite that can be joined:"
        " pass an AsyncSession, an AsyncConnection or an aiosqlite.Connection"
    )


async def _of_sqlalchemy(connection: AsyncConnection) -> Caller:
    dialect = connection.dialect
    if dialect.name != "sqlite":
        raise OtherDatabase(
            f"the session belongs to a {dialect.name} database, and the store to an SQLite file"
        )
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

    async def begin(self) -> bool:
        if not self._connection.in_transaction():
            # SQLAlchemy begins with the first statement, and calls its listeners, who may begin in their own way.
            _ = await self.ask(_NOTHING)
        if self.driver.in_transaction:
            return False
        if self.driver.isolation_level is None or _commits_by_itself(self.driver):
            raise NotInTransaction(
                "this connection commits every statement by itself, so that no transaction could carry the message:"
                " begin with nightmail.stores.sqlite.begin_immediate(engine)"
            )
        # SQLAlchemy has promised a transaction, and the driver puts off beginning it until a statement starts with a
        # word that it knows for a write. Ours need not: it would be committed at once, whatever the caller decides.
        _ = await self.ask(_BEGIN)
        return True

    async def _ask(self, text: str, values: Mapping[str, Any]) -> list[Row]:
        result = await self._connection.exec_driver_sql(text, dict(values))
        return [tuple(row) for row in result] if result.returns_rows else []


class _OfDriver(Caller):
    async def begin(self) -> bool:
        return False

    async def _ask(self, text: str, values: Mapping[str, Any]) -> list[Row]:
        async with self.driver.cursor() as cursor:
            # The connection may make its rows into something else.
            cursor.row_factory = None
            await cursor.execute(text, values)
            return [tuple(row) for row in await cursor.fetchall()]


def _in_transaction(connection: Connection) -> bool:
    try:
        return connection.in_transaction
    except ValueError:
        raise NotInTransaction("this connection is closed: publish before its transaction ends") from None


def _commits_by_itself(connection: Connection) -> bool:
    """Whether it was opened with `autocommit=True` (since Python 3.12): then its `commit` does nothing."""
    return getattr(getattr(connection, "_conn", None), "autocommit", None) is True
