"""The tables: made, brought up to date, compared."""

from __future__ import annotations

import argparse

from nightmail.cli.stores import opened
from nightmail.store import FullStore


async def migrate(store: FullStore, _: argparse.Namespace) -> int:
    """Create the tables, or bring them up to this version."""
    async with opened(store):
        await store.migrate()
        await store.check()
    print(f"{store.capabilities.name}: the tables are up to date")
    return 0


async def check(store: FullStore, _: argparse.Namespace) -> int:
    """Compare the tables with what this version makes."""
    async with opened(store):
        await store.check()
    print(f"{store.capabilities.name}: the tables are as they should be")
    return 0
