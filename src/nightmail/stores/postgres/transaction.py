"""Statements in whatever holds the caller's transaction, and on a connection of our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase
from nightmail.stores._sql import Statement
from nightmail.stores._transaction import sqlalchemy_connection
from nightmail.stores.postgres.connect import Connection
from nightmail.stores.postgres.errors import is_undefined

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


class Session(Protocol):
    """Where statements go."""

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """The rows a statement gives; their columns by name."""
        ...


class Direct:
    """A connection of the driver's: ours, or one inside the caller's transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        return await self._connection.fetch(statement.text, *statement.arguments(values))


class ThroughSqlalchemy:
    """A caller's connection of SQLAlchemy's."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        result = await self._connection.exec_driver_sql(statement.text, statement.arguments(values))
        return result.mappings().all()


class Joined:
    """A session inside the caller's transaction. Errors are the caller's to see, as their own driver raises them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        try:
            return await self._session.rows(statement, values)
        except Exception as error:
            # SQLAlchemy's error has the driver's as the cause of its cause.
            if any(is_undefined(link) for link in _chain(error)):
                raise OtherDatabase("the session's database does not have our tables") from error
            raise


async def join(transaction: object) -> Joined:
    """The session of this transaction, or a refusal that says what to pass instead."""
    if isinstance(transaction, asyncpg.Connection | PoolConnectionProxy):
        return Joined(Direct(_in_transaction(transaction)))
    connection = await sqlalchemy_connection(transaction)
    if connection is None:
        raise CannotJoin(
            f"a {type(transaction).__name__} is no transaction that the Postgres store can join: pass an AsyncSession, "
            "an AsyncConnection or an asyncpg connection that is in one"
        )
    return Joined(ThroughSqlalchemy(_of_asyncpg(connection)))


def _in_transaction(connection: Any) -> Connection:
    try:
        inside = not connection.is_closed() and connection.is_in_transaction()
    except asyncpg.InterfaceError:
        raise NotInTransaction("this connection was given back to its pool") from None
    if not inside:
        raise NotInTransaction(
            "this asyncpg connection is not in a transaction: use `async with connection.transaction()`"
        )
    return connection  # type: ignore[no-any-return]


def _of_asyncpg(connection: AsyncConnection) -> AsyncConnection:
    dialect = connection.dialect
    if dialect.name != "postgresql":
        raise OtherDatabase(f"the session belongs to {dialect.name}, and the messages are in Postgres")
    if dialect.driver != "asyncpg":
        raise CannotJoin(f"a session on {dialect.driver} cannot be joined yet: use postgresql+asyncpg://")
    sync_connection = connection.sync_connection
    driver: Any = None if sync_connection is None else sync_connection.connection.dbapi_connection
    # Set for the whole engine, which the connection's own options do not show.
    if getattr(driver, "autocommit", False):
        raise NotInTransaction(
            "this connection is in AUTOCOMMIT: it has no transaction that could carry the message"
        )
    return connection


def _chain(error: BaseException | None) -> Sequence[BaseException]:
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or getattr(error, "orig", None)
    return links
