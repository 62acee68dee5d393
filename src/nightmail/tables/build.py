"""What the tables of the three databases share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

from sqlalchemy import BLANK_SCHEMA, CheckConstraint, Index, MetaData, Table, text
from sqlalchemy.schema import conv

from nightmail.stores import TableNames

LEASE: Final = "(token is null) = (lease_until is null) and (token is null) = (claimed_at is null)"
"""The columns of a lease are all set or all null."""


@dataclass(frozen=True)
class OutboxTables:
    """Our tables in a `MetaData`. Iterating gives those that this database has."""

    messages: Table
    dead: Table
    delivered: Table
    dedup: Table
    meta: Table
    bells: Table | None = None
    """Only SQLite has it."""

    def __iter__(self) -> Iterator[Table]:
        """Each table."""
        tables = (getattr(self, field.name) for field in fields(self))
        return (table for table in tables if table is not None)


class Builder:
    """Adds tables under our names to a `MetaData`."""

    def __init__(self, metadata: MetaData, names: TableNames, **options: Any) -> None:
        """`options` are given to every table."""
        self._metadata = metadata
        self._names = names
        self._options = options

    def table(self, name: str, *parts: Any, **options: Any) -> Table:
        # The broker does not know of a schema that the metadata has as its default.
        schema = self._names.schema or BLANK_SCHEMA
        return Table(self._plain(name), self._metadata, *parts, schema=schema, **self._options, **options)

    def index(self, name: str, *columns: Any, unique: bool = False, where: str | None = None) -> Index:
        predicate: dict[str, Any] = {}
        if where is not None:
            predicate = {"postgresql_where": text(where), "sqlite_where": text(where)}
        return Index(self.name(name), *columns, unique=unique, **predicate)

    def check(self, name: str, condition: str) -> CheckConstraint:
        return CheckConstraint(condition, name=self.name(name))

    def name(self, name: str) -> conv:
        """The name of an index or a constraint, which no naming convention changes."""
        return conv(self._plain(name))

    def _plain(self, name: str) -> str:
        return f"{self._names.prefix}_{name}"
