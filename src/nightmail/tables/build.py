"""SQLAlchemy's tables, made from a store's `schema.sql`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from sqlalchemy import (
    BLANK_SCHEMA,
    CheckConstraint,
    Column,
    Computed,
    Identity,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    text,
)
from sqlalchemy.schema import conv

from nightmail.stores import TableNames, schema
from nightmail.tables.types import TYPES

_OPTION: Final = re.compile(r"([\w.]+) = ([\w.]+)")


@dataclass(frozen=True)
class OutboxTables:
    """Our tables in a `MetaData`. Iterating gives those that this database has."""

    messages: Table
    dead: Table
    delivered: Table
    dedup: Table
    controls: Table
    workers: Table
    consumers: Table
    meta: Table
    bells: Table | None = None
    """Only SQLite has it."""

    def __iter__(self) -> Iterator[Table]:
        """Each table."""
        tables = (getattr(self, field.name) for field in fields(self))
        return (table for table in tables if table is not None)


class Builder:
    """Adds the tables of a store to a `MetaData`, under our names."""

    def __init__(self, metadata: MetaData, names: TableNames, store: str) -> None:
        self._metadata = metadata
        self._names = names
        self._store = store

    def tables(self) -> OutboxTables:
        """All tables. SQLite's triggers are not here: its store adds them when it is checked for the first time."""
        return OutboxTables(**{table.name: self._table(table) for table in schema.read_schema(self._store)})

    def _table(self, table: schema.Table) -> Table:
        # On the table, not on a column: Alembic leaves out column checks.
        checks = {
            f"{table.name}_{column.name}": column.check
            for column in table.columns
            if column.check is not None
        }
        return Table(
            self._plain(table.name),
            self._metadata,
            *map(self._column, table.columns),
            PrimaryKeyConstraint(*table.primary_key, name=self._name(f"{table.name}_pkey")),
            *(
                CheckConstraint(condition, name=self._name(name))
                for name, condition in {**checks, **table.checks}.items()
            ),
            *map(self._index, table.indexes),
            # The broker does not know of a schema that the metadata has as its default.
            schema=self._names.schema or BLANK_SCHEMA,
            **self._options(table),
        )

    def _column(self, column: schema.Column) -> Column[Any]:
        filled: list[Any] = []
        if column.computed is not None:
            filled.append(Computed(column.computed, persisted=True))
        if column.numbered == "identity":
            filled.append(Identity(always=True))
        kind = column.type if column.collation is None else f"{column.type} collate {column.collation}"
        return Column(
            column.name,
            TYPES[self._store][kind],
            *filled,
            nullable=not column.required,
            server_default=None if column.default is None else text(column.default),
            autoincrement=column.numbered is not None,
        )

    def _index(self, index: schema.Index) -> Index:
        where: dict[str, Any] = {}
        if index.where is not None:
            where = {"postgresql_where": text(index.where), "sqlite_where": text(index.where)}
        columns = (text(each) if each.startswith("(") else each for each in index.columns)
        return Index(self._name(index.name), *columns, unique=index.unique, **where)

    def _options(self, table: schema.Table) -> dict[str, Any]:
        options = dict(_OPTION.findall(table.options))
        match self._store:
            case "postgres":
                return {"postgresql_with": options} if options else {}
            case "mysql":
                return {
                    f"{each}_{name}": value
                    for each in ("mysql", "mariadb")
                    for name, value in options.items()
                }
            case _:
                numbered = any(column.numbered for column in table.columns)
                return {
                    "sqlite_autoincrement": numbered,
                    "sqlite_with_rowid": table.options != "WITHOUT ROWID",
                }

    def _name(self, name: str) -> conv:
        """The name of an index or a constraint, which no naming convention changes."""
        return conv(self._plain(name))

    def _plain(self, name: str) -> str:
        return f"{self._names.prefix}_{name}"
