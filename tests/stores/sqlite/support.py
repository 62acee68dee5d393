"""The harness that drives the SQLite store through the conformance suite, and words for tests that only it has."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiosqlite
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from nightmail.limits import MAX_BODY_BYTES
from nightmail.message import Delivery, Message
from nightmail.outcome import Outcome, WriteResult
from nightmail.store import Blocking, Settlement
from nightmail.stores.sqlite import SQLiteStore
from nightmail.stores.sqlite.thread import ConnectionThread
from nightmail.testing.conformance import Harness

QUEUE = "orders"
NOW = timedelta(0)
LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class SQLiteHarness(Harness):
    """One file. The caller's own rows are in a table beside ours."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.file = directory / "shop.db"

    async def open(
        self, *, keep_delivered: bool = False, max_body_bytes: int = MAX_BODY_BYTES
    ) -> SQLiteStore:
        store = SQLiteStore(
            self.file, clock=self.clock, keep_delivered=keep_delivered, max_body_bytes=max_body_bytes
        )
        await store.open()
        await store.migrate()
        async with aiosqlite.connect(self.file) as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS effects (value TEXT NOT NULL)")
        return store

    def unopened(self) -> SQLiteStore:
        return SQLiteStore(self.file, clock=self.clock)

    async def written(self) -> list[str]:
        async with aiosqlite.connect(self.file) as connection:
            rows = await connection.execute_fetchall("SELECT value FROM effects ORDER BY value")
            return [value for (value,) in rows]

    @asynccontextmanager
    async def outside_any_transaction(self) -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(self.file) as connection:
            yield connection

    @abstractmethod
    async def write(self, transaction: Any, value: str) -> None: ...


class SQLAlchemyHarness(SQLiteHarness):
    """Callers use SQLAlchemy as it comes, which begins late and without the write lock."""

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[AsyncConnection]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{self.file}", poolclass=NullPool)
        async with engine.begin() as connection:
            yield connection

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        engine = create_engine(f"sqlite:///{self.file}", poolclass=NullPool)
        with Session(engine) as session, session.begin():
            yield Blocking(session)

    async def write(self, transaction: AsyncConnection, value: str) -> None:
        await transaction.exec_driver_sql("INSERT INTO effects VALUES (?)", (value,))


class DriverHarness(SQLiteHarness):
    """Callers use aiosqlite itself, and begin with the write lock."""

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(self.file, isolation_level=None) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                await connection.rollback()
                raise
            await connection.commit()

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield Blocking(connection)

    async def write(self, transaction: aiosqlite.Connection, value: str) -> None:
        await transaction.execute("INSERT INTO effects VALUES (?)", (value,))


def message(body: bytes = b"hello", **options: Any) -> Message:
    return Message(queue=options.pop("queue", QUEUE), body=body, **options)


async def claim(
    store: SQLiteStore, *queues: str, limit: int = 100, lease: timedelta = LEASE
) -> list[Delivery]:
    claimed = await store.claim(queues or (QUEUE,), limit=limit, lease=lease, token=uuid4())
    return list(claimed.deliveries)


async def settle(store: SQLiteStore, deliveries: Iterable[Delivery], outcome: Outcome) -> list[WriteResult]:
    return await store.settle([Settlement(delivery, outcome) for delivery in deliveries])


def bodies(records: Iterable[Any]) -> list[bytes]:
    return [record.body for record in records]


def unchecked(file: Path) -> sqlite3.Connection:
    """A connection of other software, which does not keep to the types of our columns."""
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    return connection


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Somebody else holds the write lock."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


class Faulty(sqlite3.Connection):
    """A connection whose disk fails at a statement, when told to: once, with this code."""

    faults: dict[str, int]

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if code := self.faults.pop(sql, None):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            error.sqlite_errorname = "SQLITE_IOERR"
            raise error
        return super().execute(sql, *args)


class Connections:
    """Makes connections that can fail, and remembers what was said on them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.statements: list[str] = []
        self.faults: dict[str, int] = {}
        self.made = 0

    def __call__(self, *_: Any, **__: Any) -> sqlite3.Connection:
        self.made += 1
        connection = sqlite3.connect(
            self.file, timeout=0.02, isolation_level=None, check_same_thread=False, factory=Faulty
        )
        connection.faults = self.faults
        connection.set_trace_callback(self.statements.append)
        return connection

    def count(self, statement: str) -> int:
        return self.statements.count(statement)


def note(text: str) -> Callable[[sqlite3.Connection], str]:
    def work(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))
        return text

    return work


def noted(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM notes ORDER BY rowid")]


async def has_arrived(thread: ConnectionThread) -> None:
    """Until the thread has seen all that was asked for so far."""
    await thread.read(lambda connection: None)
