"""Keeping Alembic away from our tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeAlias

from nightmail.stores import TableNames
from nightmail.tables.build import OutboxTables

IncludeObject: TypeAlias = Callable[[Any, str | None, Any, bool, Any], bool]
"""What Alembic asks about each table, column, index and constraint: whether to compare it."""


def skip_outbox_tables(
    tables: str | None = None, *, include_object: IncludeObject | None = None
) -> IncludeObject:
    """An `include_object` for Alembic's `env.py` that leaves our tables to `nightmail migrate`.

    Without it, autogenerate proposes to drop them. `include_object` is your own, asked about everything else.
    """
    names = TableNames.parse(tables)
    ours = {f"{names.prefix}_{table.name}" for table in fields(OutboxTables)}

    def include(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
        table = thing if kind == "table" else getattr(thing, "table", None)
        if table is not None and table.name in ours and table.schema in (names.schema, None):
            return False
        return include_object is None or include_object(thing, name, kind, reflected, compare_to)

    return include
