"""Creates the tables, and reads their version."""

from __future__ import annotations

import re
from typing import Final

import asyncpg

from nightmail.errors import NotAllowed
from nightmail.stores.postgres.link import Link
from nightmail.stores.postgres.place import Place
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.statements import load_script

PACKAGE: Final = "nightmail.stores.postgres"
VERSION: Final = 1
STEPS: Final[dict[int, str]] = {1: "schema.sql"}
"""For each version, the file that migrates to it from the one before."""

LOCK_SECONDS: Final = 10
_INDEX: Final = re.compile(r'^create (unique )?index ("\w+") on ([^;]+);', re.MULTILINE)


async def version(link: Link, names: TableNames) -> int:
    """The version of the tables; 0 when there are none."""
    try:
        found = await link.fetchval(f"select version from {names.quoted('meta')}")  # noqa: S608 - our own names
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return 0
    return int(found) if found is not None else await _adopt(link, names)


async def _adopt(link: Link, names: TableNames) -> int:
    """Record this version for tables created by other tools, such as Alembic: `check` verifies them."""
    await link.execute(
        f"insert into {names.quoted('meta')} (version) values ({VERSION}) on conflict do nothing"  # noqa: S608
    )
    return VERSION


def script(names: TableNames) -> str:
    """The statements that create the tables in an empty database."""
    schema = "" if names.schema is None else f'create schema if not exists "{names.schema}";\n\n'
    return schema + "\n".join(load_script(PACKAGE, file, names) for file in STEPS.values()).rstrip()


async def migrate(link: Link, names: TableNames, place: Place) -> None:
    """Bring the tables up to this version: all steps in one transaction, by one process at a time."""
    try:
        await _migrate(link, names, place)
    except asyncpg.InsufficientPrivilegeError as error:
        where = await link.fetchval("select coalesce($1, current_schema(), 'public')", names.schema)
        user = await link.fetchval("select current_user")
        raise NotAllowed(
            f"{error.args[0]}: the user {user} needs the right to create tables. "
            f'As the owner of the database: GRANT USAGE, CREATE ON SCHEMA "{where}" TO "{user}", or run '
            "`nightmail migrate` as the owner (`nightmail migrate --sql` prints the statements)"
        ) from error


async def repair(link: Link, names: TableNames, place: Place) -> None:
    """Recreate indexes that were dropped, or that a failed attempt left unusable, without blocking writes."""
    for unique, index, rest in _INDEX.findall(script(names)):
        name = place.qualified_index(index)
        usable = await link.fetchval(
            "select i.indisvalid and i.indisready from pg_catalog.pg_index as i "
            "where i.indexrelid = pg_catalog.to_regclass($1)",
            name,
        )
        if usable is False:
            await link.execute_alone(f"drop index concurrently {name}")
        if not usable:
            await link.execute_alone(f"create {unique}index concurrently {index} on {rest}")


async def _migrate(link: Link, names: TableNames, place: Place) -> None:
    async with link.transaction():
        # A waiting migration blocks all others from the tables: better to give up, and try again later.
        await link.execute(f"set local lock_timeout = '{LOCK_SECONDS}s'; set local statement_timeout = 0")
        await link.execute(
            "select pg_advisory_xact_lock(hashtext('nightmail migrate'), hashtext($1))", names.quoted("meta")
        )
        await _make_schema(link, names)
        found = await _version_in_transaction(link, names, place)
        for step in range(found + 1, VERSION + 1):
            await link.execute(load_script(PACKAGE, STEPS[step], names))


async def _make_schema(link: Link, names: TableNames) -> None:
    # Checked first: `if not exists` needs the right to create schemas even if there is nothing to create.
    if names.schema is None or await link.fetchval("select to_regnamespace($1)", f'"{names.schema}"'):
        return
    await link.execute(f'create schema "{names.schema}"')


async def _version_in_transaction(link: Link, names: TableNames, place: Place) -> int:
    if await link.fetchval("select to_regclass($1)", place.quoted("meta")) is None:
        return 0
    return await version(link, names)
