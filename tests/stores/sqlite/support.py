"""The harness that drives the SQLite store through the conformance suite, and words for tests that only it has."""

from __future__ import annotations

import sqlite3
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiosqlite
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from nightmail.errors import Refused, SchemaMissing
from nightmail.limits import MAX_BODY_BYTES
from nightmail.store import Blocking
from nightmail.stores.sqlite import SQLiteStore
from nightmail.stores.sqlite.thread import ConnectionThread
from nightmail.testing.conformance import Harness
from tests.stores.shared.backend import Begin, BeginBlocking, SqlBackend
from tests.stores.shared.callers import of_django, of_sqlalchemy, of_synchronous_sqlalchemy


class SQLiteHarness(Harness):
    """One file. The caller's own rows are in a table beside ours."""

    def __init__(self, directory: Path, name: str = "shop.db") -> None:
        super().__init__()
        self.file = directory / name

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


def unchecked(file: Path) -> sqlite3.Connection:
    """A connection of other software, which does not keep to the types of our columns."""
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    return connection


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another connection holds the write lock."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


class Faulty(sqlite3.Connection):
    """A connection whose disk fails at a statement, when told to: once, with this code."""

    faults: dict[str, int]
    """Instead of these statements."""
    late_faults: dict[str, int]
    """After these statements, which have been carried out."""

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if code := self.faults.pop(sql, None):
            raise _disk_error(code)
        cursor = super().execute(sql, *args)
        if code := self.late_faults.pop(sql, None):
            raise _disk_error(code)
        return cursor


def _disk_error(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    error.sqlite_errorname = "SQLITE_IOERR"
    return error


class Connections:
    """Makes connections that can fail, and remembers what was said on them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.statements: list[str] = []
        self.faults: dict[str, int] = {}
        self.late_faults: dict[str, int] = {}
        self.made = 0

    def __call__(self, *_: Any, **__: Any) -> sqlite3.Connection:
        self.made += 1
        connection = sqlite3.connect(
            self.file, timeout=0.02, isolation_level=None, check_same_thread=False, factory=Faulty
        )
        connection.faults = self.faults
        connection.late_faults = self.late_faults
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


# What a caller's transaction may live in.


@asynccontextmanager
async def aiosqlite_connection(url: str) -> AsyncIterator[Any]:
    async with DriverHarness(path_of(url).parent, path_of(url).name).transaction() as own:
        yield own


@contextmanager
def sqlite3_connection(url: str) -> Iterator[Any]:
    """As most callers begin: without the write lock."""
    with closing(sqlite3.connect(path_of(url), isolation_level=None)) as own:
        own.execute("BEGIN")
        with own:
            yield own


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


CALLERS: dict[str, Begin] = {
    "aiosqlite": aiosqlite_connection,
    **of_sqlalchemy(lambda url: url.replace("sqlite://", "sqlite+aiosqlite://")),
}
BLOCKING_CALLERS: dict[str, BeginBlocking] = {
    "sqlite3": sqlite3_connection,
    **of_synchronous_sqlalchemy(str),
    **of_django("sqlite3"),
}


class SQLiteBackend(SqlBackend):
    """One file, which is not there yet."""

    async_drivers = ("aiosqlite",)
    sync_driver = "pysqlite"
    django_engine = "sqlite3"
    new_identity = "UPDATE nightmail_meta SET identity = lower(hex(randomblob(16)))"
    no_tables = SchemaMissing
    refused = Refused
    own_errors_in_transactions = True
    odd = "x'6f6464'"
    letter_counters = ("failures", "claims")

    def __init__(self, file: Path) -> None:
        super().__init__(f"sqlite:///{file}")
        self.file = file

    def store(self, **options: Any) -> SQLiteStore:
        return SQLiteStore(self.file, **options)

    @contextmanager
    def elsewhere(self) -> Iterator[SQLiteBackend]:
        yield SQLiteBackend(self.file.with_name("elsewhere.db"))

    def connection(self, url: str | None = None) -> AbstractAsyncContextManager[Any]:
        return aiosqlite.connect(path_of(url or self.url), isolation_level=None)

    def transaction(self, url: str | None = None) -> AbstractAsyncContextManager[Any]:
        return aiosqlite_connection(url or self.url)

    async def execute(self, connection: Any, statement: str) -> list[tuple[Any, ...]]:
        return list(await connection.execute_fetchall(statement))

    def url_with(self, driver: str) -> str:
        return self.url.replace("sqlite://", f"sqlite+{driver}://")

    @property
    def outside(self) -> dict[str, tuple[Begin, str]]:
        return {"aiosqlite": (self.connection, "begin")}

    def sync_outside(self) -> AbstractContextManager[Any]:
        return closing(sqlite3.connect(self.file, isolation_level=None))

    @asynccontextmanager
    async def foreign_session(self) -> AsyncIterator[Any]:
        class Elsewhere(AsyncConnection):
            closed = False
            sync_connection = Mock(get_execution_options=dict)
            dialect = create_async_engine("postgresql+asyncpg://localhost/shop").dialect

            def __init__(self) -> None:
                """Never connected."""

        yield Elsewhere()

    async def waits_for_a_lock(self) -> bool:
        raise NotImplementedError("only the waiting connection knows")

    async def write_oddly(self, statement: str) -> None:
        with closing(unchecked(self.file)) as connection, connection:
            connection.execute(statement)

    async def refuse(self, body: str, *, on: str = "insert", table: str = "messages") -> None:
        row = "new" if on == "insert" else "old"
        await self.run(
            f"CREATE TRIGGER refuse BEFORE {on} ON nightmail_{table} WHEN {row}.body = CAST('{body}' AS BLOB) "
            "BEGIN SELECT raise(ABORT, 'no'); END"
        )
