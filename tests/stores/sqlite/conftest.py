"""A store over a file of its own, engines of callers over the same file, and a thread without a store."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from nightmail.stores.sqlite import SQLiteStore, begin_immediate
from nightmail.stores.sqlite.connect import connect, create_file
from nightmail.stores.sqlite.thread import ConnectionThread
from nightmail.testing.clock import ManualClock
from tests.stores.sqlite.support import Connections, SQLiteBackend


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def backend(file: Path) -> SQLiteBackend:
    """The database that the shared tests use."""
    return SQLiteBackend(file)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def store(file: Path, clock: ManualClock) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(file, clock=clock)
    await store.open()
    await store.migrate()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE effects (value TEXT)")
    yield store
    await store.close()


@pytest_asyncio.fixture
async def engine(store: SQLiteStore, file: Path) -> AsyncIterator[AsyncEngine]:
    """An engine as SQLAlchemy makes it: it begins late and without the write lock."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    yield engine
    await engine.dispose()


@pytest_asyncio.fixture
async def eager(store: SQLiteStore, file: Path) -> AsyncIterator[AsyncEngine]:
    """An engine that begins with the write lock."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    begin_immediate(engine)
    yield engine
    await engine.dispose()


@pytest.fixture
def connections(file: Path) -> Connections:
    create_file(str(file))
    with closing(connect(str(file))) as connection:
        connection.execute("CREATE TABLE notes (text TEXT CHECK (text <> 'refused'))")
    return Connections(file)


@pytest_asyncio.fixture
async def thread(connections: Connections) -> AsyncIterator[ConnectionThread]:
    thread = ConnectionThread("test", connections)
    yield thread
    await thread.stop()
