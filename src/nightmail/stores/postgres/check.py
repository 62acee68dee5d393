"""Checks that the tables are those of this version, and that we may use them: how Postgres describes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nightmail.errors import SchemaDrift, SchemaMissing
from nightmail.stores.postgres.link import Link
from nightmail.stores.postgres.migrate import VERSION, version
from nightmail.stores.postgres.place import Place
from nightmail.stores.shared.meta import LOOK_INTERVAL, NOTICE_HORIZON, OTHER_INTERVALS
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.check import (
    Shape,
    column_called,
    columns_of,
    differences,
    refuse_without_a_role,
)
from nightmail.stores.sql.schema import Table, read_schema
from nightmail.stores.sql.statements import Statement
from nightmail.stores.sql.verbs import Ask

ROLES: Final = {
    "publish": (("messages", "SELECT"), ("messages", "INSERT")),
    "work": (
        ("messages", "SELECT"),
        ("messages", "UPDATE"),
        ("messages", "DELETE"),
        ("dead", "SELECT"),
        ("dead", "INSERT"),
        ("controls", "SELECT"),
    ),
}
"""The rights that an account needs for either role: on which table, and which. What it needs beyond that, for timers or
as an operator, is reported when it is missing."""
_CASTS: Final = re.compile(r"::\w+( precision)?|[()']")
_BETWEEN: Final = re.compile(r"(\w+) between (\S+) and (\S+)")


async def check(
    link: Link, names: TableNames, statements: Mapping[str, Statement], place: Place, *, adopt: bool
) -> None:
    """Raise unless the tables are those of this version, and this account may publish or work. See `Store.check`."""
    tables = await version(link, names, adopt=adopt)
    if tables is None:
        raise SchemaMissing
    if problem := tables.problem(VERSION):
        raise problem
    if tables.version > VERSION:
        return  # Newer tables that serve this code. What they must look like, newer code knows.
    schema = read_schema("postgres")
    values = {
        "prefix": names.prefix,
        "tables": [place.quoted(table.name) for table in schema],
        "messages": place.quoted("messages"),
    }

    async def ask(name: str) -> list[Any]:
        rows: list[Any] = await link.send(Ask(statements[name], values))
        return rows

    found: dict[str, dict[str, str]] = {}
    for table, name, definition in await ask("columns"):
        found.setdefault(table, {})[column_called(table, name)] = definition
    for table, name, definition in await ask("indexes"):
        columns, where, condition = definition.partition(" WHERE ")
        found[table][f"index {name}"] = columns + (where and f" where {_plain(condition)}")
    for table, name, definition in await ask("constraints"):
        found[table][f"constraint {name}"] = _plain(definition)
    told = list(differences(_expected(schema, names), found, names))
    if any("fillfactor=50" not in row["options"] for row in await ask("options")):
        told.append("the messages have another fillfactor than 50")
    if any(tuple(row) != (LOOK_INTERVAL, NOTICE_HORIZON) for row in await ask("meta")):
        told.append(OTHER_INTERVALS)
    if told:
        raise SchemaDrift(told)
    granted = {(row["table"], row["permit"]) for row in await ask("rights")}
    refuse_without_a_role(
        {
            role: [f"{right} on {table}" for table, right in needed if (table, right) not in granted]
            for role, needed in ROLES.items()
        }
    )


def _expected(schema: tuple[Table, ...], names: TableNames) -> Shape:
    return {
        table.name: columns_of(table) | dict(_indexes_and_checks(table, names.prefix)) for table in schema
    }


def _indexes_and_checks(table: Table, prefix: str) -> Iterator[tuple[str, str]]:
    yield f"index {prefix}_{table.name}_pkey", f"unique btree ({', '.join(table.primary_key)})"
    for index in table.indexes:
        where = f" where {_plain(index.where)}" if index.where else ""
        unique = "unique " if index.unique else ""
        yield f"index {prefix}_{index.name}", f"{unique}btree ({', '.join(index.columns)}){where}"
    for name, condition in table.checks.items():
        yield f"constraint {prefix}_{name}", f"check {_plain(condition)}"


def _plain(condition: str) -> str:
    """A condition in the words that the file and the server share.

    The server adds casts and parentheses, and prints `between` as two comparisons.
    """
    return _BETWEEN.sub(r"\1 >= \2 and \1 <= \3", _CASTS.sub("", condition.lower()))
