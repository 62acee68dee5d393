"""Making the tables, and telling which version they are."""

from __future__ import annotations

import re
from typing import Final
from uuid import uuid4

from nightmail.stores._names import TableNames
from nightmail.stores._sql import load_script
from nightmail.stores.mysql.errors import is_undefined
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.text import literal

PACKAGE: Final = "nightmail.stores.mysql"
VERSION: Final = 1
_STATEMENT: Final = re.compile(r"(.+?);\s*$", re.MULTILINE | re.DOTALL)


async def version(link: Link, names: TableNames) -> int:
    """The version of the tables; 0 when there are none, or when making them was never finished."""
    try:
        (found,) = await link.ask(f"select version from {names.quoted('meta')}")  # noqa: S608 - our own names
    except Exception as error:
        if is_undefined(error):
            return 0
        raise
    return int(found.rows[0][0]) if found.rows else 0


async def migrate(link: Link, names: TableNames) -> None:
    """Bring the tables up to this version.

    Statements that make tables commit by themselves, so each may be carried out twice and by two processes at the same
    time, and the row that says which version this is comes last.
    """
    if await version(link, names) >= VERSION:
        return
    if names.schema is not None:
        await _make_database(link, names.schema)
    for statement in _STATEMENT.findall(load_script(PACKAGE, "schema.sql", names)):
        await link.ask(statement)
    values = literal((VERSION, uuid4()))
    await link.ask(
        f"insert ignore into {names.quoted('meta')} (version, identity) values {values}"  # noqa: S608 - our own names
    )


async def _make_database(link: Link, schema: str) -> None:
    # Asked first: `if not exists` wants the right to create databases even where there is nothing to create.
    (found,) = await link.ask(
        f"select 1 from information_schema.schemata where schema_name = {literal(schema)}"  # noqa: S608 - a literal
    )
    if not found.rows:
        await link.ask(f"create database `{schema}`")
