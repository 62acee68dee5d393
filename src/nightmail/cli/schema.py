"""Creates, migrates and checks the tables."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from nightmail.cli import audit
from nightmail.cli.exit_codes import DONE, SCHEMA, Refusal
from nightmail.cli.progress import working
from nightmail.cli.running import Session, on_store
from nightmail.cli.texts import safe
from nightmail.errors import SchemaDrift, SchemaMissing, SchemaOutdated
from nightmail.store import FullStore


@on_store(positional=True, changes=True)
async def migrate(
    session: Session,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements that this would run, and change nothing.")
    ] = False,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="With --sql: do not connect; the statements for an empty database."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Also make indexes again that were dropped. On a large table this takes a while.",
        ),
    ] = False,
) -> int:
    """Create the tables, or bring them up to this version. Says first what it will do."""
    if sql:
        if dry_run or repair:
            raise Refusal("--sql only prints statements: it goes with no other option")
        return await _print_statements(session, offline=offline)
    if offline:
        raise Refusal("--offline goes with --sql")
    name = session.chosen.store.capabilities.name
    try:
        async with session.chosen.opened() as store:
            plan = await _plan(store, repair=repair)
    except SchemaMissing:
        # An SQLite file that does not exist yet cannot be opened to be looked at.
        plan = _CREATE
    session.out.say(f"{name}: {safe(plan or 'nothing to do', _LINE)}")
    if dry_run:
        return SCHEMA if plan else DONE
    async with session.chosen.opened() as store, working("migrating"):
        await store.migrate(repair=repair)
        if plan:
            audit.changed(session, "migrate")
        await store.check()
    session.out.say(f"{name}: the tables are up to date")
    return DONE


_LINE: Final = 2000
"""Longer than a plan, unless names in the database are very long."""
_CREATE: Final = "the tables will be created (--sql prints the statements)"


async def _print_statements(session: Session, *, offline: bool) -> int:
    """What a migration would run on these tables."""
    chosen = session.chosen
    if offline:
        session.out.say(chosen.store.schema_sql())
        return DONE
    try:
        async with chosen.opened() as store:
            await store.check(adopt=False)
    except SchemaMissing:
        session.out.say(chosen.store.schema_sql())
    except SchemaOutdated as outdated:
        session.out.say(chosen.store.schema_sql(found=outdated.found))
    except SchemaDrift as drift:
        session.out.note(f"{chosen.store.capabilities.name}: no statements to print; {safe(drift, _LINE)}")
    else:
        session.out.note(f"{chosen.store.capabilities.name}: nothing to do")
    return DONE


async def _plan(store: FullStore, *, repair: bool) -> str | None:
    """What a migration will do, in a sentence; `None` if nothing."""
    try:
        await store.check(adopt=False)
    except SchemaMissing:
        return _CREATE
    except SchemaOutdated as outdated:
        return f"the tables will be brought from version {outdated.found} to {outdated.needed}"
    except SchemaDrift as drift:
        found = "; ".join(drift.differences)
        remedy = (
            "Missing indexes will be made again" if repair else "Only --repair makes missing indexes again"
        )
        return f"the tables differ: {found}. {remedy}"
    return None


@on_store(json=True, positional=True)
async def check(session: Session) -> int:
    """Compare the tables with what this version makes. Exit code 4 if they differ: for CI."""
    name = session.chosen.store.capabilities.name
    try:
        async with session.chosen.opened() as store:
            await store.check(adopt=False)
    except (SchemaMissing, SchemaOutdated, SchemaDrift) as wrong:
        if not session.out.as_json:
            raise
        differences = wrong.differences if isinstance(wrong, SchemaDrift) else [str(wrong)]
        session.out.json({"store": name, "differences": differences})
        return SCHEMA
    if session.out.as_json:
        session.out.json({"store": name, "differences": []})
    else:
        session.out.say(f"{name}: the tables are as they should be")
    return DONE
