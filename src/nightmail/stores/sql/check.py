"""Compares the tables in a database with those of `schema.sql`. Harmless additions by others are ignored.

A store reads its database's catalogue and describes what it finds in the words of its `schema.sql`; the rest is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from nightmail.errors import NotAllowed
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.schema import Table

Things: TypeAlias = Mapping[str, str]
"""Columns, indexes and constraints by kind and name, such as `index nightmail_claim`, and how each is defined."""
Shape: TypeAlias = Mapping[str, Things]
"""What each table has."""

# Our statements do not fill a column of others: it must do without a value.
_NEEDS_A_VALUE: Final = re.compile(r"not null(?!.*(default|generated|identity|auto_increment))")


@dataclass(frozen=True, slots=True)
class Difference:
    """What is missing, or defined differently."""

    thing: str
    expected: str
    found: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"the {self.thing} is missing"
        return f"the {self.thing} is {self.found!r} instead of {self.expected!r}"


def compared(expected: Things, found: Things) -> Iterator[Difference]:
    """What of this is missing or differs."""
    for thing, definition in expected.items():
        if found.get(thing) != definition:
            yield Difference(thing, definition, found.get(thing))


def differences(expected: Shape, found: Shape, names: TableNames) -> Iterator[str]:
    """In what the tables differ from the expected ones, as sentences."""
    for table, things in expected.items():
        if table not in found:
            yield f"the table {names.quoted(table)} is missing"
            continue
        yield from map(str, compared(things, found[table]))
        for thing in found[table].keys() - things.keys():
            definition = found[table][thing]
            if thing.startswith("column") and _NEEDS_A_VALUE.search(definition):
                yield f"the {thing} is not ours and must not be null"
            if thing.startswith("index") and definition.startswith("unique"):
                yield f"the unique {thing} is not ours and may refuse messages"


def refuse_without_a_role(missing: Mapping[str, Sequence[str]]) -> None:
    """Refuse an account that lacks something for each of these roles."""
    if all(missing.values()):
        needed = "; ".join(f"to {role}, it lacks {', '.join(rights)}" for role, rights in missing.items())
        raise NotAllowed(f"the account may neither publish nor work: {needed}")


def columns_of(table: Table) -> dict[str, str]:
    """The columns that a table should have."""
    return {column_called(table.name, column.name): column.definition for column in table.columns}


def column_called(table: str, name: str) -> str:
    """What a column is called in our messages."""
    return f"column {table}.{name}"
