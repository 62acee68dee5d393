"""Creates, migrates and checks the tables."""

from __future__ import annotations

import argparse

from nightmail.cli.stores import opened
from nightmail.store import FullStore


def add_migrate_arguments(command: argparse.ArgumentParser) -> None:
    """Its arguments, besides the store."""
    command.add_argument(
        "--sql", action="store_true", help="print the statements that make the tables, and change nothing"
    )
    command.add_argument(
        "--repair",
        action="store_true",
        help="also make indexes again that were dropped (on a large table this takes a while)",
    )


async def migrate(store: FullStore, given: argparse.Namespace) -> int:
    """Create the tables, or bring them up to this version."""
    if given.sql:
        print(store.schema_sql())
        return 0
    async with opened(store):
        await store.migrate(repair=given.repair)
        await store.check()
    print(f"{store.capabilities.name}: the tables are up to date")
    return 0


async def check(store: FullStore, _: argparse.Namespace) -> int:
    """Compare the tables with what this version makes."""
    async with opened(store):
        await store.check()
    print(f"{store.capabilities.name}: the tables are as they should be")
    return 0
