"""Runs statements in the caller's transaction, whatever object holds it, and on our own connections.

psycopg is never imported here: a caller that has one of its connections has imported it already.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase
from nightmail.stores.postgres.errors import chain, is_undefined, without_data
from nightmail.stores.postgres.place import Place
from nightmail.stores.sql.callers_objects import sqlalchemy_connection, synchronous
from nightmail.stores.sql.statements import Statement

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncConnection

NUMBERED: Final = frozenset({"asyncpg"})
"""SQLAlchemy's drivers that take `$1`."""
FORMATTED: Final = frozenset({"psycopg", "psycopg2"})
"""SQLAlchemy's drivers that take `%(name)s`."""


class Session(Protocol):
    """Where statements go."""

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """Run a statement and return its rows, with columns by name."""
        ...


class Fetches(Protocol):
    """A connection of ours, or one of the driver's."""

    async def fetch(self, text: str, /, *arguments: Any) -> list[Any]:
        """Run a statement and return its rows."""
        ...


class Direct:
    """A connection of ours, or one of the driver's inside the caller's transaction."""

    def __init__(self, connection: Fetches) -> None:
        self._connection = connection

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        return await self._connection.fetch(statement.text, *statement.arguments(values))


class ThroughSqlalchemy:
    """A caller's SQLAlchemy connection."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        text, arguments = for_driver(self._connection.dialect.driver, statement, values)
        result = await self._connection.exec_driver_sql(text, arguments)
        return result.mappings().all() if result.returns_rows else []


class ThroughPsycopg:
    """A caller's psycopg connection. The cursor is ours: theirs may return rows in any form."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        driver: Any = sys.modules["psycopg"]
        async with driver.AsyncRawCursor(self._connection, row_factory=driver.rows.dict_row) as cursor:
            await cursor.execute(statement.text, statement.arguments(values))
            found: list[Any] = await cursor.fetchall() if cursor.description else []
            return found


class Joined:
    """A session inside the caller's transaction. Callers see errors as their own driver raises them."""

    def __init__(self, session: Session, connection: object) -> None:
        """`connection` is the driver's connection: it is recognized again whatever object wraps it."""
        self._session = session
        self.connection = connection
        self.place: Place | None = None
        """The schema of our tables, once known: the session's own search path does not matter then."""

    async def rows(self, statement: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        """See `Session.rows`."""
        if self.place is not None:
            statement = self.place.statement(statement)
        try:
            return await self._session.rows(statement, values)
        except Exception as error:
            without_data(error)
            if any(is_undefined(link) for link in chain(error)):
                raise OtherDatabase("the session's database does not have our tables") from error
            raise


async def join(transaction: object) -> Joined:
    """The session of this transaction, or an error that says what to pass instead."""
    if isinstance(transaction, asyncpg.Connection | PoolConnectionProxy):
        own: Any = transaction
        # A pool lends one connection through many proxies.
        return Joined(Direct(_in_transaction(own)), getattr(own, "_con", own))
    connection = await sqlalchemy_connection(transaction)
    if connection is not None:
        driver_connection = driver_connection_of_ours(connection.sync_connection)
        return Joined(ThroughSqlalchemy(connection), driver_connection)
    psycopg: Any = sys.modules.get("psycopg")
    if psycopg is not None:
        if isinstance(transaction, psycopg.AsyncConnection):
            refuse_unless_in_transaction(transaction)
            return Joined(ThroughPsycopg(transaction), transaction)
        if isinstance(transaction, psycopg.Connection):
            raise synchronous(transaction)
    raise CannotJoin(
        f"a {type(transaction).__name__} is no transaction that the Postgres store can join: pass an AsyncSession, "
        "an AsyncConnection or a connection of asyncpg or psycopg that is in one"
    )


def for_driver(driver: str, statement: Statement, values: Mapping[str, Any]) -> tuple[str, Any]:
    """The text and the arguments of a statement as this SQLAlchemy driver takes them."""
    if driver in NUMBERED:
        return statement.text, statement.arguments(values)
    return statement.formatted, {name: values[name] for name in statement.parameters}


def driver_connection_of_ours(connection: sqlalchemy.Connection | None) -> object:
    """The driver connection below SQLAlchemy's; raises for another database or driver, or outside a transaction."""
    if connection is None:
        raise NotInTransaction("this connection is not open: publish inside its transaction")
    dialect = connection.dialect
    if dialect.name != "postgresql":
        raise OtherDatabase(f"the session belongs to {dialect.name}, and the messages are in Postgres")
    if dialect.driver not in NUMBERED | FORMATTED:
        raise CannotJoin(
            f"a session on {dialect.driver} cannot be joined: use postgresql+asyncpg:// or postgresql+psycopg://"
        )
    # Set on the whole engine, which the connection's own options do not show.
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise NotInTransaction(
            "this connection is in AUTOCOMMIT: it has no transaction that could carry the message"
        )
    return connection.connection.driver_connection


def refuse_unless_in_transaction(connection: Any) -> None:
    """Raise for a psycopg connection that is not in a transaction.

    One that is not in autocommit always counts: its next statement begins a transaction, even if that one is ours.
    """
    if connection.closed:
        raise NotInTransaction("this connection is closed: publish before its transaction ends")
    idle: Any = sys.modules["psycopg"].pq.TransactionStatus.IDLE
    if connection.autocommit and connection.info.transaction_status == idle:
        raise NotInTransaction(
            "this psycopg connection is in autocommit and not in a transaction: use `with connection.transaction()`"
        )


def _in_transaction(connection: Any) -> Fetches:
    try:
        inside = not connection.is_closed() and connection.is_in_transaction()
    except asyncpg.InterfaceError:
        raise NotInTransaction("this connection was given back to its pool") from None
    if not inside:
        raise NotInTransaction(
            "this asyncpg connection is not in a transaction: use `async with connection.transaction()`"
        )
    return connection  # type: ignore[no-any-return]
