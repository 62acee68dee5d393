"""Sends statements in the transaction of an asynchronous driver; those of SQLAlchemy are in `blocking`.

psycopg is never imported here: a caller that has one of its connections has imported it already.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase
from nightmail.stores.postgres.identity import TableIdentity
from nightmail.stores.postgres.requests import CustomPlan, InTransaction
from nightmail.stores.sql.callers_objects import synchronous
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask, Verb, carry_out

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy

NUMBERED: Final = frozenset({"asyncpg"})
"""SQLAlchemy's drivers that take `$1`."""
FORMATTED: Final = frozenset({"psycopg", "psycopg2"})
"""SQLAlchemy's drivers that take `%(name)s`."""


class Joined:
    """A caller's transaction."""

    def __init__(self, connection: object, tables: TableIdentity) -> None:
        """`connection` is the driver's connection: it is recognized again whatever object wraps it."""
        self.connection = connection
        self.tables = tables

    def asks(self, request: Any) -> Verb[Any]:
        """A request that is not an `Ask`, as statements in this transaction."""
        match request:
            case InTransaction(verb):
                return (yield from verb)
            case CustomPlan(statement, values):
                yield from self.tables.refuse_others()
                return (yield Ask(statement, values))
            case _:
                raise TypeError(f"not a request: {request!r}")


class AsyncJoined(Joined, ABC):
    """A transaction of asynchronous code."""

    @abstractmethod
    async def send(self, request: Any) -> Any:
        """Carry out one request of a verb; rows come with columns by name."""


class ThroughAsyncpg(AsyncJoined):
    """A caller's asyncpg connection."""

    def __init__(self, connection: Any, tables: TableIdentity) -> None:
        # A pool lends one connection through many proxies.
        super().__init__(getattr(connection, "_con", connection), tables)
        self._connection = connection

    async def send(self, request: Any) -> Any:
        """See `AsyncJoined.send`."""
        if not isinstance(request, Ask):
            return await carry_out(self.asks(request), self.send)
        statement, values = self.tables.bound(request)
        return await self._connection.fetch(statement.text, *statement.arguments(values))


class ThroughPsycopg(AsyncJoined):
    """A caller's psycopg connection. The cursor is ours: theirs may return rows in any form."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], tables: TableIdentity) -> None:
        super().__init__(connection, tables)
        self._connection = connection

    async def send(self, request: Any) -> Any:
        """See `AsyncJoined.send`."""
        if not isinstance(request, Ask):
            return await carry_out(self.asks(request), self.send)
        statement, values = self.tables.bound(request)
        driver: Any = sys.modules["psycopg"]
        async with driver.AsyncRawCursor(self._connection, row_factory=driver.rows.dict_row) as cursor:
            await cursor.execute(statement.text, statement.arguments(values))
            return await cursor.fetchall() if cursor.description else []


def joined(transaction: object, tables: TableIdentity) -> AsyncJoined:
    """The session of this transaction of a driver, or an error that says what to pass instead."""
    if isinstance(transaction, asyncpg.Connection | PoolConnectionProxy):
        _refuse_outside_transaction(transaction)
        return ThroughAsyncpg(transaction, tables)
    psycopg: Any = sys.modules.get("psycopg")
    if psycopg is not None:
        if isinstance(transaction, psycopg.AsyncConnection):
            refuse_unless_in_transaction(transaction)
            return ThroughPsycopg(transaction, tables)
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


def driver_connection_of_ours(connection: sqlalchemy.Connection) -> object:
    """The driver connection below SQLAlchemy's; raises for another database or driver, or outside a transaction."""
    dialect = connection.dialect
    if dialect.name != "postgresql":
        raise OtherDatabase(f"the session belongs to {dialect.name}, and the messages are in Postgres")
    if dialect.driver not in NUMBERED | FORMATTED:
        raise CannotJoin(
            f"a session on {dialect.driver} cannot be joined: use postgresql+asyncpg:// or postgresql+psycopg://"
        )
    # Set on the whole engine, which the connection's own options do not show.
    pooled = connection.connection
    if getattr(pooled.dbapi_connection, "autocommit", False):
        raise NotInTransaction(
            "this connection is in AUTOCOMMIT: it has no transaction that could carry the message"
        )
    return pooled.driver_connection


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


def _refuse_outside_transaction(connection: Any) -> None:
    try:
        inside = not connection.is_closed() and connection.is_in_transaction()
    except asyncpg.InterfaceError:
        raise NotInTransaction("this connection was given back to its pool") from None
    if not inside:
        raise NotInTransaction(
            "this asyncpg connection is not in a transaction: use `async with connection.transaction()`"
        )
