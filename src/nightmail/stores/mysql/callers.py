"""Statements in the caller's transaction, whatever object holds it, and in a transaction of our own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from nightmail.errors import CannotJoin, NotInTransaction, OtherDatabase
from nightmail.stores.mysql.errors import is_undefined
from nightmail.stores.mysql.link import Answer, Link, ask, is_closed
from nightmail.stores.mysql.text import lifted
from nightmail.stores.sql.callers_objects import sqlalchemy_connection, synchronous

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

DIALECTS: Final = frozenset({"mysql", "mariadb"})
ASYNCHRONOUS: Final = ("asyncmy.connection", "aiomysql.connection")
SYNCHRONOUS: Final = {
    "pymysql.connections": "pymysql.cursors",
    "MySQLdb.connections": "MySQLdb.cursors",
}
"""Where drivers define their connections and cursors."""
_DRIVERS: Final = frozenset({"asyncmy", "aiomysql"})


class Session(Protocol):
    """Where statements go."""

    async def ask(self, statement: str) -> Answer:
        """Run this statement."""
        ...


class OneByOne:
    """A connection of ours that commits each statement by itself."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def ask(self, statement: str) -> Answer:
        """See `Session.ask`."""
        return (await self._link.ask(statement))[0]


class OwnTransaction:
    """A transaction on a connection of ours: begun with its first statement, at read committed."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._begun = False

    async def ask(self, statement: str) -> Answer:
        """See `Session.ask`."""
        begin = () if self._begun else ("begin",)
        self._begun = True
        return (await self._link.ask(*begin, statement))[-1]

    async def commit(self) -> None:
        """Commit, if anything was begun."""
        if self._begun:
            await self._link.ask("commit")


class Direct:
    """A caller's driver connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, statement: str) -> Answer:
        """See `Session.ask`."""
        return (await ask(self._connection, statement))[0]


class ThroughSqlalchemy:
    """A caller's SQLAlchemy connection."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def ask(self, statement: str) -> Answer:
        """See `Session.ask`."""
        text, values = lifted(statement)
        result = await self._connection.exec_driver_sql(text, values or None)
        if result.returns_rows:
            return Answer([tuple(row) for row in result.all()], 0)
        last_id = result.lastrowid or 0
        result.close()
        return Answer((), last_id)


class Joined:
    """A session inside the caller's transaction. Errors reach the caller as their own driver raises them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def ask(self, statement: str) -> Answer:
        """See `Session.ask`."""
        try:
            return await self._session.ask(statement)
        except Exception as error:
            if is_undefined(error):
                raise OtherDatabase("the session's database does not have our tables") from error
            raise


async def join(transaction: object) -> Joined:
    """The session of this transaction, or a refusal that says what to pass instead."""
    if is_asynchronous(transaction):
        return Joined(Direct(_in_transaction(transaction)))
    if is_synchronous(transaction):
        raise synchronous(transaction)
    connection = await sqlalchemy_connection(transaction)
    if connection is None:
        raise CannotJoin(
            f"a {type(transaction).__name__} is no transaction that the MySQL store can join: pass an AsyncSession, "
            "an AsyncConnection, or an asyncmy or aiomysql connection that is in one"
        )
    return Joined(ThroughSqlalchemy(_of_our_drivers(connection)))


def is_asynchronous(transaction: object) -> bool:
    """Whether it is a connection of a driver whose answers are awaited."""
    return _is_connection(transaction, ASYNCHRONOUS)


def is_synchronous(transaction: object) -> bool:
    """Whether it is a connection of a driver that blocks."""
    return _is_connection(transaction, SYNCHRONOUS)


def _is_connection(transaction: object, where: Iterable[str]) -> bool:
    # Not imported here: a caller that holds such a connection has imported its driver already.
    modules: list[Any] = [sys.modules[name] for name in where if name in sys.modules]
    return any(isinstance(transaction, module.Connection) for module in modules)


def _in_transaction(connection: Any) -> Any:
    # With autocommit off there is always a transaction: the first statement begins it.
    if is_closed(connection) or (connection.get_autocommit() and not connection.get_transaction_status()):
        raise NotInTransaction(
            "this connection is not in a transaction: begin one with `await connection.begin()`, or turn autocommit off"
        )
    return connection


def _of_our_drivers(connection: AsyncConnection) -> AsyncConnection:
    dialect = connection.dialect
    if dialect.name not in DIALECTS:
        raise OtherDatabase(f"the session belongs to {dialect.name}, and the messages are in MySQL")
    if dialect.driver not in _DRIVERS:
        raise CannotJoin(f"a session on {dialect.driver} cannot be joined: use asyncmy or aiomysql")
    sync_connection = connection.sync_connection
    fairy: Any = None if sync_connection is None else sync_connection.connection
    driver: Any = getattr(fairy, "driver_connection", None)
    # It may be set for the whole engine, which the connection's own options do not show.
    if driver is not None and driver.get_autocommit() and not driver.get_transaction_status():
        raise NotInTransaction(
            "this connection is in AUTOCOMMIT: it has no transaction that could carry the message"
        )
    return connection
