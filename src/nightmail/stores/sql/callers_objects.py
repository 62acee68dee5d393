"""What a caller may pass as "my transaction", as far as SQLAlchemy and Django are concerned.

Neither is imported here: a caller that has an object of theirs has imported it already.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nightmail.errors import CannotJoin, NotInTransaction

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession


def asynchronous_sqlalchemy(transaction: object) -> AsyncSession | AsyncConnection | None:
    """This `AsyncSession` or `AsyncConnection`; `None` for what is neither SQLAlchemy's nor Django's.

    Statements must go through it and not through the driver below: SQLAlchemy begins the driver's transaction only
    with the first statement it sends itself, and a message that bypasses it would commit on its own.
    """
    asyncio_side: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    if asyncio_side is not None:
        if isinstance(transaction, asyncio_side.AsyncSession):
            session: AsyncSession = transaction
            return session
        if isinstance(transaction, asyncio_side.AsyncConnection):
            connection: AsyncConnection = transaction
            if connection.sync_connection is None:
                raise NotInTransaction("this connection is not open: publish inside its transaction")
            return connection
        if isinstance(transaction, asyncio_side.async_scoped_session):
            current: AsyncSession = transaction()
            return current
        if isinstance(transaction, asyncio_side.AsyncEngine):
            raise CannotJoin(
                "an AsyncEngine is not a transaction: pass a session or connection of it that is in one"
            )
    if _is_of("sqlalchemy", transaction) or _django_wrapper(transaction) is not None:
        raise synchronous(transaction)
    return None


async def sqlalchemy_connection(transaction: object) -> AsyncConnection | None:
    """The connection of an `AsyncSession` or `AsyncConnection`; `None` as above."""
    found: Any = asynchronous_sqlalchemy(transaction)
    if found is None:
        return None
    connection: AsyncConnection = await found.connection() if hasattr(found, "sync_session") else found
    _refuse_unless_usable(
        closed=connection.closed,
        options=connection.sync_connection.get_execution_options() if connection.sync_connection else {},
    )
    return connection


def blocking_connection(session: object) -> Connection | None:
    """The connection of a `Session`, `scoped_session` or `Connection`; `None` for anything not from SQLAlchemy.

    Whether the whole engine is in AUTOCOMMIT only the driver below can tell: the store checks that.
    """
    sqlalchemy: Any = sys.modules.get("sqlalchemy")
    if sqlalchemy is None:
        return None
    orm: Any = sys.modules.get("sqlalchemy.orm")
    connection: Connection | None = None
    if isinstance(session, sqlalchemy.Connection):
        connection = session
    elif orm is not None and isinstance(session, orm.Session | orm.scoped_session):
        connection = session.connection()
    elif isinstance(session, sqlalchemy.Engine):
        raise CannotJoin("an Engine is not a transaction: pass a session or connection of it that is in one")
    if connection is not None:
        _refuse_unless_usable(closed=connection.closed, options=connection.get_execution_options())
        return connection
    if _is_of("sqlalchemy", session):
        raise asynchronous(session)
    return None


def django_connection(session: object) -> Any | None:
    """Django's wrapper of a connection, inside an atomic block; `None` for anything not from Django.

    Callers pass `django.db.connection` or `django.db.connections["..."]`. Without an atomic block each statement would
    commit on its own.
    """
    wrapper = _django_wrapper(session)
    if wrapper is not None and not wrapper.in_atomic_block:
        raise NotInTransaction(
            f"Django's connection {wrapper.alias!r} is not in a transaction: publish inside `transaction.atomic()`"
        )
    return wrapper


def synchronous(transaction: object) -> CannotJoin:
    """The error for a synchronous session where an asynchronous one is needed."""
    return CannotJoin(
        f"a {type(transaction).__name__} is synchronous: publish with a SyncPublisher there, "
        "or pass an asynchronous session or connection here"
    )


def asynchronous(session: object) -> CannotJoin:
    """The error for an asynchronous session where a synchronous one is needed."""
    return CannotJoin(
        f"a {type(session).__name__} is no synchronous session: await the broker's own publish with it"
    )


def _django_wrapper(session: object) -> Any | None:
    backends: Any = sys.modules.get("django.db.backends.base.base")
    proxies: Any = sys.modules.get("django.utils.connection")
    if proxies is not None and isinstance(session, proxies.ConnectionProxy):
        # `django.db.connection`: the connection this thread has under that alias.
        found: Any = session
        session = found._connections[found._alias]
    if backends is not None and isinstance(session, backends.BaseDatabaseWrapper):
        return session
    return None


def _is_of(package: str, value: object) -> bool:
    return type(value).__module__.startswith(f"{package}.")


def _refuse_unless_usable(*, closed: bool, options: Any) -> None:
    if closed:
        raise NotInTransaction("this connection is closed: publish before its transaction ends")
    if options.get("isolation_level") == "AUTOCOMMIT":
        raise NotInTransaction(
            "this connection is in AUTOCOMMIT: it has no transaction that could carry the message"
        )
