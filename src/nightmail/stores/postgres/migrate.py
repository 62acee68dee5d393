"""Creates the tables, and reads their version."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from nightmail.errors import NotAllowed
from nightmail.stores.postgres.link import Link
from nightmail.stores.postgres.place import Place
from nightmail.stores.shared.meta import TablesVersion
from nightmail.stores.shared.table_names import TableNames
from nightmail.stores.sql.lane import Locked
from nightmail.stores.sql.migrations import TABLES_LOCKED, Step, steps, upgrade_script
from nightmail.stores.sql.schema import read_schema
from nightmail.stores.sql.statements import load_script

PACKAGE: Final = "nightmail.stores.postgres"
VERSION: Final = 1
TURN_SECONDS: Final = 0.1
"""How often to ask whether another process is done."""
_NEW_INDEX: Final = re.compile(r'create (?:unique )?index concurrently if not exists ("\w+")')


async def version(link: Link, names: TableNames, *, adopt: bool = True) -> TablesVersion | None:
    """The version of the tables; `None` when there are none.

    Tables created by other tools, such as Alembic, have none recorded. They are taken for this version, which `check`
    verifies; to `adopt` them is to record it.
    """
    query = f"select array[version, serves] from {names.quoted('meta')}"  # noqa: S608 - our own names
    try:
        found = await link.fetchval(query)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None
    if found is not None:
        return TablesVersion(*found)
    if adopt:
        record = f"insert into {names.quoted('meta')} (version) values ({VERSION})"  # noqa: S608 - our own names
        await link.execute(f"{record} on conflict do nothing")
    return TablesVersion(VERSION, VERSION)


def script(names: TableNames, *, found: int | None = None) -> str:
    """The statements that create the tables in an empty database, or bring those of version `found` up to this one."""
    if found is not None:
        return upgrade_script(PACKAGE, names, found=found, needed=VERSION)
    schema = "" if names.schema is None else f'create schema if not exists "{names.schema}";\n\n'
    return schema + load_script(PACKAGE, "schema.sql", names).rstrip()


async def migrate(link: Link, names: TableNames, place: Place, *, repair: bool) -> None:
    """Create the tables, or bring them up to this version: each step in one transaction, by one process at a time.

    With `repair` also recreate indexes that were dropped, or that a failed attempt left unusable. The connection is not
    used for anything else afterwards: it may have a lock.
    """
    try:
        await _migrate(link, names, place)
        if repair:
            await _repair(link, names, place)
    except asyncpg.LockNotAvailableError as error:
        raise Locked(TABLES_LOCKED) from error
    except asyncpg.InsufficientPrivilegeError as error:
        where = await link.fetchval("select coalesce($1, current_schema(), 'public')", names.schema)
        user = await link.fetchval("select current_user")
        raise NotAllowed(
            f"{error.args[0]}: the user {user} needs the right to create tables. "
            f'As the owner of the database: GRANT USAGE, CREATE ON SCHEMA "{where}" TO "{user}", or run '
            "`nightmail migrate` as the owner (`nightmail migrate --sql` prints the statements)"
        ) from error


async def _repair(link: Link, names: TableNames, place: Place) -> None:
    """Without blocking writes."""
    await _wait_for_turn(link, names)
    for table in read_schema("postgres"):
        for index in table.indexes:
            quoted = names.quoted(index.name)
            if not await _has_index(link, place.qualified_index(quoted)):
                unique = "unique " if index.unique else ""
                where = f" where {index.where}" if index.where else ""
                await link.execute_alone(
                    f"create {unique}index concurrently if not exists {quoted} on {names.quoted(table.name)} "
                    f"({', '.join(index.columns)}){where}"
                )


async def _migrate(link: Link, names: TableNames, place: Place) -> None:
    async with _by_one_process(link, names):
        await _make_schema(link, names)
        found = await _version_in_transaction(link, names, place)
        if found is None:
            await link.execute(load_script(PACKAGE, "schema.sql", names))
    if found is not None:
        for step in steps(PACKAGE, names, found=found.version, needed=VERSION):
            await _take(link, names, place, step)


async def _take(link: Link, names: TableNames, place: Place, step: Step) -> None:
    if step.alone:
        await _wait_for_turn(link, names)
        if not await _is_next(link, names, place, step):
            return
        for statement in step.statements:
            if new := _NEW_INDEX.search(statement):
                # `if not exists` would be content with one that cannot be used.
                await _has_index(link, place.qualified_index(new[1]))
            await link.execute_alone(statement)
    async with _by_one_process(link, names):
        if not await _is_next(link, names, place, step):
            return
        if not step.alone:
            if place.schema is not None:
                # What the step creates belongs beside the tables. The server's own schema is still searched first.
                await link.execute(f"set local search_path to {place.schema}")
            await link.execute(step.script)
        await link.execute(
            f"update {names.quoted('meta')} set version = {step.version}, serves = {step.serves}"  # noqa: S608 - ours
        )


async def _is_next(link: Link, names: TableNames, place: Place, step: Step) -> bool:
    """Whether no other process has taken this step meanwhile."""
    before = await _version_in_transaction(link, names, place)
    return before is not None and before.version == step.version - 1


async def _has_index(link: Link, name: str) -> bool:
    """Whether there is such an index. One that an interrupted attempt left unusable is dropped."""
    usable = await link.fetchval(
        "select i.indisvalid and i.indisready from pg_catalog.pg_index as i "
        "where i.indexrelid = pg_catalog.to_regclass($1)",
        name,
    )
    if usable is False:
        await link.execute_alone(f"drop index concurrently if exists {name}")
    return bool(usable)


async def _wait_for_turn(link: Link, names: TableNames) -> None:
    """Wait until no other process works without a transaction; it is our turn until the connection is closed.

    Not behind a pooler, where no lock is ours for longer than a transaction.
    """
    # Asking again and again keeps nothing waiting. A statement that waits would have a snapshot, and to build an index
    # the other process waits for the end of all of these.
    take = "select pg_try_advisory_lock(hashtext('nightmail migrate alone'), hashtext($1))"
    while not link.pooled:
        if await link.fetchval(take, names.quoted("meta")):
            return
        await asyncio.sleep(TURN_SECONDS)


@asynccontextmanager
async def _by_one_process(link: Link, names: TableNames) -> AsyncIterator[None]:
    """A transaction, which others that migrate wait for."""
    async with link.transaction():
        await link.execute(
            "select pg_advisory_xact_lock(hashtext('nightmail migrate'), hashtext($1))", names.quoted("meta")
        )
        yield


async def _make_schema(link: Link, names: TableNames) -> None:
    # Checked first: `if not exists` needs the right to create schemas even if there is nothing to create.
    if names.schema is None or await link.fetchval("select to_regnamespace($1)", f'"{names.schema}"'):
        return
    await link.execute(f'create schema "{names.schema}"')


async def _version_in_transaction(link: Link, names: TableNames, place: Place) -> TablesVersion | None:
    if await link.fetchval("select to_regclass($1)", place.quoted("meta")) is None:
        return None
    return await version(link, names)
