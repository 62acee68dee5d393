"""Creating the tables, and reading their version."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

from nightmail.errors import NotAllowed, SchemaMissing, StoreError
from nightmail.stores.mysql.errors import is_denied, is_locked, is_there_already, is_undefined, sentence_of
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.text import literal
from nightmail.stores.shared.meta import TablesVersion
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.lane import Locked
from nightmail.stores.sql.migrations import TABLES_LOCKED, statements, steps, upgrade_script
from nightmail.stores.sql.schema import Table, read_schema
from nightmail.stores.sql.statements import load_script

PACKAGE: Final = "nightmail.stores.mysql"
VERSION: Final = 1
LOCK_SECONDS: Final = 10


async def version(link: Link, names: TableNames) -> TablesVersion | None:
    """The version of the tables; raises `SchemaMissing` when there are none.

    `None` when none was recorded: creating them was never finished, or Alembic created them.
    """
    try:
        (found,) = await link.ask(f"select version, serves from {names.quoted('meta')}")  # noqa: S608 - our own names
    except Exception as error:
        if is_undefined(error):
            raise SchemaMissing from error
        raise
    return TablesVersion(*map(int, found.rows[0])) if found.rows else None


async def note_version(link: Link, names: TableNames) -> None:
    """Record this version. The identity of the tables is generated once."""
    values = literal((VERSION, uuid4()))
    await link.ask(
        f"insert ignore into {names.quoted('meta')} (version, identity) values {values}"  # noqa: S608 - our own names
    )


def script(names: TableNames, *, found: int | None = None) -> str:
    """The statements that create the tables in an empty database, or bring those of version `found` up to this one."""
    if found is not None:
        return upgrade_script(PACKAGE, names, found=found, needed=VERSION)
    database = "" if names.schema is None else f"create database if not exists `{names.schema}`;\n\n"
    identity = "unhex(replace(uuid(), '-', ''))"
    noted = f"insert ignore into {names.quoted('meta')} (version, identity) values ({VERSION}, {identity});"  # noqa: S608 - our own names
    return f"{database}{load_script(PACKAGE, 'schema.sql', names).rstrip()}\n\n{noted}"


async def migrate(link: Link, names: TableNames, *, repair: bool) -> None:
    """Bring the tables up to this version; with `repair` also recreate indexes that were dropped.

    Statements that create tables commit by themselves, so each may run twice and in two processes at the same time, and
    the row with the version comes last. The connection is not used for anything else: it waits longer than others.
    """
    # A waiting migration blocks all others from the tables: better to give up, and try again later.
    await link.ask(
        f"set session lock_wait_timeout = {LOCK_SECONDS}, innodb_lock_wait_timeout = {LOCK_SECONDS}"
    )
    try:
        await _migrate(link, names)
        for table in read_schema("mysql") if repair else ():
            await _add_missing_indexes(link, names, table)
    except Exception as error:
        if not is_denied(error):
            raise
        raise await _not_allowed(link, names, error) from error


async def _add_missing_indexes(link: Link, names: TableNames, table: Table) -> None:
    (found,) = await link.ask(f"show index from {names.quoted(table.name)}")
    there = {str(row[2]) for row in found.rows}
    for index in table.indexes:
        if f"{names.prefix}_{index.name}" not in there:
            unique = "unique " if index.unique else ""
            await _repeatable(
                link,
                f"alter table {names.quoted(table.name)} "
                f"add {unique}key {names.quoted(index.name)} ({', '.join(index.columns)})",
            )


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
    try:
        found = await version(link, names)
    except SchemaMissing:
        found = None
    if found is None:
        await _create(link, names)
        return
    for step in steps(PACKAGE, names, found=found.version, needed=VERSION):
        for statement in step.statements:
            await _repeatable(link, statement)
        await link.ask(
            f"update {names.quoted('meta')} set version = {step.version}, serves = {step.serves} "  # noqa: S608 - ours
            f"where version = {step.version - 1}"
        )


async def _create(link: Link, names: TableNames) -> None:
    if names.schema is not None:
        await _make_database(link, names.schema)
    for statement in statements(load_script(PACKAGE, "schema.sql", names)):
        await link.ask(statement)
    await note_version(link, names)


async def _repeatable(link: Link, statement: str) -> None:
    """Run a statement that an earlier attempt, or another process, may have run already: each commits by itself."""
    try:
        await link.ask(statement)
    except Exception as error:
        if is_there_already(error):
            return
        if is_denied(error):
            raise
        if is_locked(error):
            raise Locked(TABLES_LOCKED) from error
        raise StoreError(
            f"the tables could not be changed: {sentence_of(error)}. Run `nightmail migrate` again once that is mended"
        ) from error


async def _make_database(link: Link, schema: str) -> None:
    # Checked first: `if not exists` needs the right to create databases even when there is nothing to create.
    (found,) = await link.ask(
        f"select 1 from information_schema.schemata where schema_name = {literal(schema)}"  # noqa: S608 - a literal
    )
    if not found.rows:
        await link.ask(f"create database `{schema}`")
