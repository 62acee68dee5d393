"""Whether the tables are what this version makes, and whether we may use them: how MySQL describes them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

from nightmail.errors import SchemaDrift, SchemaMissing
from nightmail.stores.mysql.errors import does_not_fit, is_denied
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.migrate import VERSION, note_version, version
from nightmail.stores.mysql.text import Queries, Sql, Value, literal
from nightmail.stores.shared.meta import LOOK_INTERVAL, NOTICE_HORIZON, OTHER_INTERVALS
from nightmail.stores.shared.table_names import TABLES, TableNames
from nightmail.stores.sql.check import column_called, columns_of, differences, refuse_without_a_role
from nightmail.stores.sql.schema import Table, read_schema

_PUBLISHER: Final = {
    "may_read_messages": "SELECT on messages",
    "may_store_messages": "INSERT on messages",
}
_WORKER: Final = {
    "may_read_messages": "SELECT on messages",
    "may_write_messages": "UPDATE on messages",
    "may_remove_messages": "DELETE on messages",
    "may_read_letters": "SELECT on dead",
    "may_bury": "INSERT on dead",
    "may_read_controls": "SELECT on controls",
}
ROLES: Final = {"publish": _PUBLISHER, "work": _WORKER}
"""The privileges that an account needs for either role. What it needs beyond that, for timers or as an operator, is
reported when it is missing."""
# The display width of a number: some servers report it, and it means nothing.
_WIDTH: Final = re.compile(r"^(tinyint|int|bigint)\(\d+\)")
_CHECK: Final = "check"


async def check(link: Link, names: TableNames, sql: Queries, *, adopt: bool) -> None:
    """Raise unless the tables are what this version makes and we may use them. See `Store.check`."""
    found = await version(link, names)
    if found is not None and (problem := found.problem(VERSION)):
        raise problem
    if found is not None and found.version > VERSION:
        return  # Newer tables that serve this code. What they must look like, newer code knows.
    # First: what we may not use we may not see either, and would report as missing.
    await _ask_for_permits(link, sql)
    if found is None and await _lacks_tables(link, names, sql):
        raise SchemaMissing
    told = [difference async for difference in _differences(link, names, sql)]
    if told:
        raise SchemaDrift(told)
    if found is None and adopt:
        # Alembic makes tables, not rows.
        await note_version(link, names)


async def _ask_for_permits(link: Link, sql: Queries) -> None:
    """Refuse an account that may neither publish nor work."""
    denied: set[str] = set()
    for permit in dict.fromkeys(permit for role in ROLES.values() for permit in role):
        try:
            await link.ask(sql(permit))
        except Exception as error:
            if is_denied(error):
                denied.add(permit)
            # How the tables differ is reported below.
            elif not does_not_fit(error):
                raise
    refuse_without_a_role(
        {name: [role[each] for each in role if each in denied] for name, role in ROLES.items()}
    )


async def _lacks_tables(link: Link, names: TableNames, sql: Queries) -> bool:
    """Whether making the tables was never finished."""
    (engines,) = await link.ask(sql("engines", **_place(names)))
    return len(engines.rows) < len(TABLES)


def _place(names: TableNames) -> dict[str, Value]:
    return {
        "database": Sql("database()") if names.schema is None else Sql(literal(names.schema)),
        "tables": [f"{names.prefix}_{table}" for table in sorted(TABLES)],
    }


async def _differences(link: Link, names: TableNames, sql: Queries) -> AsyncIterator[str]:
    values = _place(names)
    asked = [sql(name, **values) for name in ("columns", "indexes", "constraints", "engines", "meta")]
    columns, indexes, constraints, engines, meta = [answer.rows for answer in await link.ask(*asked)]
    found: dict[str, dict[str, str]] = {}
    for table, engine in _bare(engines, names):
        found[table] = {}
        if engine != "InnoDB":
            yield f"the table {table} is stored by {engine}, which has no transactions we could use"
    for table, name, *said in _bare(columns, names):
        found[table][column_called(table, name)] = _column(*said)
    for table, name, non_unique, listed in _bare(indexes, names):
        unique = "" if int(non_unique) else "unique "
        found[table][_index_called(table, name, names)] = f"{unique}({listed})"
    for table, name in _bare(constraints, names):
        found[table][f"constraint {name}"] = _CHECK
    told = {table for table, _ in _bare(constraints, names)}
    expected = {
        table.name: dict(_expected(table, names, constraints=table.name in told))
        for table in read_schema("mysql")
        if table.name in found or not await _is_denied(link, names, table.name)
    }
    for difference in differences(expected, found, names):
        yield difference
    if meta and tuple(meta[0]) != (LOOK_INTERVAL.total_seconds(), NOTICE_HORIZON.total_seconds()):
        yield OTHER_INTERVALS


def _expected(table: Table, names: TableNames, *, constraints: bool) -> Iterator[tuple[str, str]]:
    """`constraints`: whether the account can see them. Their conditions are not compared."""
    yield from columns_of(table).items()
    yield _index_called(table.name, "PRIMARY", names), f"unique ({', '.join(table.primary_key)})"
    for index in table.indexes:
        unique = "unique " if index.unique else ""
        called = _index_called(table.name, f"{names.prefix}_{index.name}", names)
        yield called, f"{unique}({', '.join(index.columns)})"
    for name in table.checks if constraints else ():
        yield f"constraint {names.prefix}_{name}", _CHECK


def _index_called(table: str, name: str, names: TableNames) -> str:
    """An index has its name only within its table."""
    return f"index {name} on {names.prefix}_{table}"


def _bare(rows: Sequence[Sequence[Any]], names: TableNames) -> Iterator[Sequence[Any]]:
    """These rows, with the table in the first column without our prefix."""
    return ((table.removeprefix(f"{names.prefix}_"), *rest) for table, *rest in rows)


async def _is_denied(link: Link, names: TableNames, table: str) -> bool:
    """Whether the table only seems missing because the account may not see it."""
    try:
        await link.ask(f"select 1 from {names.quoted(table)} where false")  # noqa: S608 - our own names
    except Exception as error:
        if is_denied(error):
            return True
        if not does_not_fit(error):
            raise
    return False


def _column(type_: str, nullable: str, collation: str | None, has_default: int, extra: str) -> str:
    parts = [
        _WIDTH.sub(r"\1", type_),
        f"collate {collation}" if collation else "",
        "not null" if nullable == "NO" else "",
        "auto_increment" if "auto_increment" in extra else "",
        # Only these words, without the rest: a computed default is called generated, too.
        *(kind for kind in ("stored generated", "virtual generated") if kind in extra.lower()),
        # A nullable column has the default NULL, which some servers report.
        "default" if has_default and nullable == "NO" else "",
    ]
    return " ".join(part for part in parts if part)
