"""A listener for engines of callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine


def begin_immediate(engine: AsyncEngine | Engine) -> None:
    """Have every transaction of this SQLAlchemy engine begin with BEGIN IMMEDIATE.

    Left to themselves SQLAlchemy and its driver begin late and without the write lock. A transaction that reads, and
    writes or publishes afterwards, is then refused with `StaleTransaction` whenever a worker has written in between.
    With this it waits for its turn at the beginning, and a savepoint is inside the transaction from the start.

    The price: transactions that only read wait for their turn too. Give those an engine of their own.
    """
    from sqlalchemy import event

    def begin(connection: Any) -> None:
        autocommit = connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
        # A driver's connection with `autocommit=False` (since Python 3.12) has begun already.
        if not autocommit and not connection.connection.driver_connection.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(getattr(engine, "sync_engine", engine), "begin", begin)
