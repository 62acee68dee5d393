"""A caller's own table beside the store, in the same database: what a handler has done there, and how often."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from nightmail.stores.sqlite import begin_immediate

_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}


def engine_url(url: str) -> str:
    """The same database for SQLAlchemy."""
    scheme, rest = url.split("://", 1)
    return f"{_DRIVERS[scheme]}://{rest}"


class Ledger:
    """Effects of handlers, one row each."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.sessions = async_sessionmaker(engine)

    async def write(self, session: AsyncSession, effect: str) -> None:
        """Have an effect, in this transaction."""
        await session.execute(text("insert into effects values (:effect)"), {"effect": effect})

    async def effects(self) -> list[str]:
        """What was committed."""
        async with self.engine.connect() as connection:
            return sorted((await connection.execute(text("select effect from effects"))).scalars())

    async def create(self) -> None:
        """Make the table."""
        async with self.engine.begin() as connection:
            await connection.execute(text("create table effects (effect varchar(50))"))


@asynccontextmanager
async def ledger_at(url: str, **options: Any) -> AsyncIterator[Ledger]:
    """The ledger in this database, on an engine of its own."""
    engine = create_async_engine(engine_url(url), **options)
    if url.startswith("sqlite"):
        begin_immediate(engine)
    try:
        yield Ledger(engine)
    finally:
        await engine.dispose()
