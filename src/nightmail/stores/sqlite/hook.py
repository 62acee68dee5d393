"""An event listener for callers' SQLAlchemy engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine


def begin_immediate(engine: AsyncEngine | Engine) -> None:
    """Have every transaction of this SQLAlchemy engine begin with BEGIN IMMEDIATE.

    By default SQLAlchemy and its driver begin late and without the write lock. A transaction that reads, and then
    writes or publishes, fails with `StaleTransaction` whenever a worker has written in between. With this it waits for
    the lock at the beginning, and a savepoint is inside the transaction from the start.

    The price: read-only transactions wait for the lock too. Give them a separate engine.
    """
    from sqlalchemy import event

    def begin(connection: Any) -> None:
        autocommit = connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
        # A driver connection with `autocommit=False` (Python 3.12+) has already begun.
        if not autocommit and not connection.connection.driver_connection.in_transaction:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(getattr(engine, "sync_engine", engine), "begin", begin)
