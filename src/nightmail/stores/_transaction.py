"""What a caller may pass as "my transaction", as far as SQLAlchemy is concerned.

SQLAlchemy is never imported here: whoever holds one of its sessions has imported it already, and whoever
has not cannot hold one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nightmail.errors import CannotJoin, NotInTransaction

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


async def sqlalchemy_connection(transaction: object) -> AsyncConnection | None:
    """The connection of an `AsyncSession` or `AsyncConnection`; `None` for anything not of SQLAlchemy.

    Statements must go through it and not through the driver below: SQLAlchemy tells the driver to begin only
    with the first statement it sends itself, and a message sent past it would commit on its own.
    """
    asyncio_side: Any = sys.modules.get("sqlalchemy.ext.asyncio")
    if asyncio_side is not None:
        if isinstance(transaction, asyncio_side.AsyncConnection):
            return _usable(transaction)
        if isinstance(transaction, asyncio_side.AsyncSession | asyncio_side.async_scoped_session):
            return _usable(await transaction.connection())
        if isinstance(transaction, asyncio_side.AsyncEngine):
            raise CannotJoin(
                "an AsyncEngine is not a transaction: pass a session or connection of it that is in one"
            )
    if type(transaction).__module__.startswith("sqlalchemy."):
        raise CannotJoin(
            f"a {type(transaction).__name__} is synchronous: pass an AsyncSession or AsyncConnection to this broker"
        )
    return None


def _usable(connection: AsyncConnection) -> AsyncConnection:
    if connection.closed:
        raise NotInTransaction("this connection is closed: publish before its transaction ends")
    options = connection.sync_connection.get_execution_options() if connection.sync_connection else {}
    if options.get("isolation_level") == "AUTOCOMMIT":
        raise NotInTransaction(
            "this connection is in AUTOCOMMIT: it has no transaction that could carry the message"
        )
    return connection
