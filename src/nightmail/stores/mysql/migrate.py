"""Creating the tables, and reading their version."""

from __future__ import annotations

import re
from typing import Final
from uuid import uuid4

from nightmail.errors import NotAllowed
from nightmail.stores.mysql.errors import is_denied, is_undefined, sentence_of
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.text import literal
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import load_script

PACKAGE: Final = "nightmail.stores.mysql"
VERSION: Final = 1
_STATEMENT: Final = re.compile(r"(.+?);\s*$", re.MULTILINE | re.DOTALL)
_TABLE: Final = re.compile(r"^create table if not exists (\S+) \((.+?)^\)", re.MULTILINE | re.DOTALL)
_INDEX: Final = re.compile(r"^    ((?:unique )?key (\S+) \(.+?\)),?$", re.MULTILINE)


async def version(link: Link, names: TableNames) -> int | None:
    """The version of the tables; 0 when there are none.

    `None` when none was recorded: creating them was never finished, or Alembic created them.
    """
    try:
        (found,) = await link.ask(f"select version from {names.quoted('meta')}")  # noqa: S608 - our own names
    except Exception as error:
        if is_undefined(error):
            return 0
        raise
    return int(found.rows[0][0]) if found.rows else None


async def note_version(link: Link, names: TableNames) -> None:
    """Record this version. The identity of the tables is generated once."""
    values = literal((VERSION, uuid4()))
    await link.ask(
        f"insert ignore into {names.quoted('meta')} (version, identity) values {values}"  # noqa: S608 - our own names
    )


def script(names: TableNames) -> str:
    """The statements that create the tables in an empty database."""
    database = "" if names.schema is None else f"create database if not exists `{names.schema}`;\n\n"
    identity = "unhex(replace(uuid(), '-', ''))"
    noted = f"insert ignore into {names.quoted('meta')} (version, identity) values ({VERSION}, {identity});"  # noqa: S608 - our own names
    return f"{database}{load_script(PACKAGE, 'schema.sql', names).rstrip()}\n\n{noted}"


async def migrate(link: Link, names: TableNames) -> None:
    """Bring the tables up to this version.

    Statements that create tables commit by themselves, so each may run twice and in two processes at the same time, and
    the row with the version comes last.
    """
    try:
        await _migrate(link, names)
    except Exception as error:
        if not is_denied(error):
            raise
        raise await _not_allowed(link, names, error) from error


async def repair(link: Link, names: TableNames) -> None:
    """Recreate indexes that were dropped."""
    try:
        for table, definitions in _indexes_of(load_script(PACKAGE, "schema.sql", names)).items():
            values = literal((names.schema,)) if names.schema is not None else "(database())"
            bare = table.replace("`", "").rpartition(".")[2]
            (found,) = await link.ask(
                "select distinct index_name from information_schema.statistics "  # noqa: S608 - literals
                f"where table_schema = {values} and table_name = {literal(bare)}"
            )
            there = {str(row[0]) for row in found.rows}
            missing = [text for name, text in definitions.items() if name not in there]
            if missing:
                await link.ask(f"alter table {table} " + ", ".join(f"add {text}" for text in missing))
    except Exception as error:
        if not is_denied(error):
            raise
        raise await _not_allowed(link, names, error) from error


def _indexes_of(schema: str) -> dict[str, dict[str, str]]:
    """The definitions of indexes in a schema, by table and name."""
    found: dict[str, dict[str, str]] = {}
    for table, body in _TABLE.findall(schema):
        indexes = {name: text for text, name in _INDEX.findall(body)}
        found[table] = {name.replace("`", ""): text for name, text in indexes.items()}
    return found


async def _not_allowed(link: Link, names: TableNames, error: Exception) -> NotAllowed:
    (found,) = await link.ask("select current_user(), database()")
    account, database = found.rows[0]
    user, _, host = str(account).rpartition("@")
    rights = "CREATE, ALTER, INDEX, SELECT, INSERT, UPDATE, DELETE"
    return NotAllowed(
        f"{sentence_of(error)}: to make the tables, the account needs "
        f"GRANT {rights} ON `{names.schema or database}`.* TO '{user}'@'{host}'. Or run `nightmail migrate` as another "
        "account (`nightmail migrate --sql` prints the statements)"
    )


async def _migrate(link: Link, names: TableNames) -> None:
    if (await version(link, names) or 0) >= VERSION:
        return
    if names.schema is not None:
        await _make_database(link, names.schema)
    for statement in _STATEMENT.findall(load_script(PACKAGE, "schema.sql", names)):
        await link.ask(statement)
    await note_version(link, names)


async def _make_database(link: Link, schema: str) -> None:
    # Checked first: `if not exists` needs the right to create databases even when there is nothing to create.
    (found,) = await link.ask(
        f"select 1 from information_schema.schemata where schema_name = {literal(schema)}"  # noqa: S608 - a literal
    )
    if not found.rows:
        await link.ask(f"create database `{schema}`")
