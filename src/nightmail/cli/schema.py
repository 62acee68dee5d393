"""The tables: made, brought up to date, compared."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nightmail.store import FullStore


async def migrate(store: FullStore) -> None:
    """Create the tables, or bring them up to this version."""
    async with _opened(store):
        await store.migrate()
        await store.check()
    print(f"{store.capabilities.name}: the tables are up to date")


async def check(store: FullStore) -> None:
    """Compare the tables with what this version makes."""
    async with _opened(store):
        await store.check()
    print(f"{store.capabilities.name}: the tables are as they should be")


@asynccontextmanager
async def _opened(store: FullStore) -> AsyncIterator[None]:
    await store.open()
    try:
        yield
    finally:
        await store.close()
