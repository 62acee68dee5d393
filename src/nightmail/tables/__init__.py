"""The tables as SQLAlchemy knows them, for those who make theirs with Alembic.

They are read from each store's own `schema.sql`, which `nightmail migrate` executes.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import MetaData

from nightmail.stores import TableNames
from nightmail.tables.build import Builder, OutboxTables
from nightmail.tables.skipping import IncludeObject, skip_outbox_tables

__all__ = ["IncludeObject", "OutboxTables", "make_outbox_tables", "skip_outbox_tables"]

_STORES: Final = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}


def make_outbox_tables(
    metadata: MetaData, tables: str | None = None, *, dialect: str = "postgresql"
) -> OutboxTables:
    """Add our tables to `metadata`, so that Alembic makes them with yours.

    `tables` is what the broker is given: a prefix, or `schema.prefix`. `dialect` is SQLAlchemy's name of your database:
    `postgresql`, `mysql`, `mariadb` or `sqlite` (`engine.dialect.name`). Each has tables of its own.
    """
    store = _STORES.get(dialect)
    if store is None:
        known = ", ".join(repr(name) for name in _STORES)
        raise ValueError(f"{dialect!r} is not a database that we have tables for: use one of {known}")
    names = TableNames.parse(tables)
    if store == "sqlite" and names.schema is not None:
        raise ValueError(f"SQLite has no schemas: leave out {names.schema!r}")
    return Builder(metadata, names, store).tables()
