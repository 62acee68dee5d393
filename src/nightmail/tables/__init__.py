"""The tables as SQLAlchemy knows them, for those who make theirs with Alembic.

`nightmail migrate` makes the same ones from each store's own `schema.sql`, and tests keep the two in sync.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import MetaData

from nightmail.stores import TableNames
from nightmail.tables import mysql, postgres, sqlite
from nightmail.tables.build import OutboxTables
from nightmail.tables.skipping import IncludeObject, skip_outbox_tables

__all__ = ["IncludeObject", "OutboxTables", "make_outbox_tables", "skip_outbox_tables"]

_DIALECTS: Final[dict[str, Callable[[MetaData, TableNames], OutboxTables]]] = {
    "postgresql": postgres.make,
    "mysql": mysql.make,
    "mariadb": mysql.make,
    "sqlite": sqlite.make,
}


def make_outbox_tables(
    metadata: MetaData, tables: str | None = None, *, dialect: str = "postgresql"
) -> OutboxTables:
    """Add our tables to `metadata`, so that Alembic makes them with yours.

    `tables` is what the broker is given: a prefix, or `schema.prefix`. `dialect` is SQLAlchemy's name of your database:
    `postgresql`, `mysql`, `mariadb` or `sqlite` (`engine.dialect.name`). Each has tables of its own.
    """
    make = _DIALECTS.get(dialect)
    if make is None:
        known = ", ".join(repr(name) for name in _DIALECTS)
        raise ValueError(f"{dialect!r} is not a database that we have tables for: use one of {known}")
    return make(metadata, TableNames.parse(tables))
