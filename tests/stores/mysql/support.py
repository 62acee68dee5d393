"""The harnesses that drive the MySQL store through the conformance suite, and words for tests that only it has."""

from __future__ import annotations

import asyncio
import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import aiomysql  # type: ignore[import-untyped]
import asyncmy
import asyncmy.errors
import pymysql
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from nightmail.errors import OtherDatabase
from nightmail.limits import MAX_BODY_BYTES
from nightmail.store import Blocking
from nightmail.stores.mysql import MySQLStore
from nightmail.stores.mysql.link import Link, is_closed
from nightmail.testing.conformance import Harness
from testkit.servers.mariadb import MariaDB, connect_arguments
from tests.stores.documented_rights import PASSWORD, grants, url_as
from tests.stores.shared.backend import Begin, ServerBackend, SqlBackend
from tests.stores.shared.callers import of_sqlalchemy
from tests.stores.support import opened

EMPTY = (
    "delete from notes",
    "delete from nightmail_messages",
    "delete from nightmail_dead",
    "delete from nightmail_delivered",
    "delete from nightmail_dedup",
    "delete from nightmail_controls",
    "delete from nightmail_workers",
    "delete from nightmail_consumers",
)


class MySQLHarness(Harness):
    """One database, emptied before each test. The caller's own rows are in a table beside ours.

    Stores and callers connect with `url`. What only the owner of the tables may do is done with `owner`.
    """

    _migrated: ClassVar[set[str]] = set()

    def __init__(self, url: str, *, owner: str | None = None) -> None:
        super().__init__()
        self.url = url
        self.owner = owner or url

    async def open(self, *, keep_delivered: bool = False, max_body_bytes: int = MAX_BODY_BYTES) -> MySQLStore:
        store = MySQLStore(
            self.url, clock=self.clock, keep_delivered=keep_delivered, max_body_bytes=max_body_bytes
        )
        await store.open()
        if self.owner not in self._migrated:
            await store.migrate()
        return store

    def unopened(self) -> MySQLStore:
        return MySQLStore(self.url, clock=self.clock)

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with blocking_connection(self.url) as own:
            yield Blocking(own)

    async def make_empty(self) -> None:
        if self.owner not in self._migrated:
            await make_tables(self.owner)
            self._migrated.add(self.owner)
        async with connection(self.owner) as own:
            for statement in EMPTY:
                await execute(own, statement)

    async def written(self) -> list[str]:
        return sorted(value for (value,) in await run(self.owner, "select value from notes"))

    @asynccontextmanager
    async def outside_any_transaction(self) -> AsyncIterator[Any]:
        async with connection(self.url) as own:
            yield own

    @abstractmethod
    async def write(self, transaction: Any, value: str) -> None: ...


class DriverHarness(MySQLHarness):
    """Callers use the driver itself: asyncmy, or aiomysql."""

    def __init__(self, url: str, driver: Any = asyncmy, *, owner: str | None = None) -> None:
        super().__init__(url, owner=owner)
        self._driver = driver

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[Any]:
        isolation = "repeatable read" if repeatable_read else "read committed"
        async with connection(self.url, self._driver) as own:
            await execute(own, f"set session transaction isolation level {isolation}")
            await own.begin()
            try:
                yield own
            except BaseException:
                await own.rollback()
                raise
            await own.commit()

    @asynccontextmanager
    async def outside_any_transaction(self) -> AsyncIterator[Any]:
        async with connection(self.url, self._driver) as own:
            yield own

    async def write(self, transaction: Any, value: str) -> None:
        await execute(transaction, "insert into notes values (%s)", (value,))


class SqlalchemyHarness(MySQLHarness):
    """Callers use a connection of SQLAlchemy's: a session would begin again when it is used after its end."""

    def __init__(self, url: str, driver: str = "asyncmy", *, owner: str | None = None) -> None:
        super().__init__(url, owner=owner)
        self._driver = driver

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[Any]:
        engine = create_async_engine(
            sqlalchemy_url(self.url, self._driver),
            poolclass=NullPool,
            isolation_level="REPEATABLE READ" if repeatable_read else "READ COMMITTED",
        )
        try:
            async with engine.begin() as own:
                yield own
        finally:
            await engine.dispose()

    async def write(self, transaction: Any, value: str) -> None:
        await transaction.execute(text("insert into notes values (:value)"), {"value": value})


def sqlalchemy_url(url: str, driver: str = "asyncmy") -> str:
    return url.replace("mysql://", f"mysql+{driver}://")


@asynccontextmanager
async def connection(url: str, driver: Any = asyncmy, **options: Any) -> AsyncIterator[Any]:
    """A connection that is not the store's, which commits each statement unless told otherwise."""
    own = await driver.connect(**connect_arguments(url), **{"autocommit": True, **options})
    try:
        yield own
    finally:
        await own.ensure_closed()


async def execute(own: Any, statement: str, arguments: Any = None) -> list[tuple[Any, ...]]:
    async with own.cursor() as cursor:
        await cursor.execute(statement, arguments)
        return list(await cursor.fetchall()) if cursor.description else []


async def run(url: str, statement: str, arguments: Any = None) -> list[tuple[Any, ...]]:
    """One statement on a connection of its own."""
    async with connection(url) as own:
        return await execute(own, statement, arguments)


async def make_tables(owner: str) -> None:
    """Make the tables of the store, and the table of its callers."""
    async with open_store(owner):
        await run(owner, "create table if not exists notes (value text not null)")


@asynccontextmanager
async def user(
    owner: str, *roles: str, only_the_least: bool = False, with_notes: bool = False
) -> AsyncIterator[str]:
    """The URL of a new user who has what the documentation grants these roles, and may write the callers' table."""
    name = f"nightmail_{secrets.token_hex(4)}"
    async with connection(owner) as own:
        await execute(own, f"create user {name} identified by '{PASSWORD}'")
        for role in roles:
            for grant in grants("MariaDB and MySQL", role, to=name, only_the_least=only_the_least):
                await execute(own, grant)
        if with_notes:
            await execute(own, f"grant insert on notes to {name}")
    try:
        yield url_as(owner, name)
    finally:
        await run(owner, f"drop user {name}")


def open_store(url: Any, **options: Any) -> AbstractAsyncContextManager[MySQLStore]:
    """A store by its own clock, migrated and open."""
    return opened(MySQLStore(url, **options))


class Interference:
    """Stands between a store and its connections: sees what is sent, and what happens to it is for a test to say.

    Begin before the store is opened, to see its connections too.
    """

    def __init__(self, store: MySQLStore | None = None) -> None:
        self.packets: list[tuple[str, ...]] = []
        """What was sent, one entry for each round trip."""
        self.opened: list[Any] = []
        self.before: Callable[[tuple[str, ...]], None] = lambda _: None
        """Called with what is about to be sent; may raise instead of sending it."""
        self.after: Callable[[tuple[str, ...]], None] = lambda _: None
        """Called when the answer is there; may raise as if it were not."""
        self.gate = asyncio.Event()
        """What is about to be sent waits until this is set."""
        self.gate.set()
        if store is None:
            return
        connect = store._connect

        async def watched() -> Any:
            own = await connect()
            self.opened.append(own)
            return own

        store._connect = replace(connect, open=watched)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """While this lasts it sees every packet of every store in the process."""
        ask = Link.ask

        async def asked(link: Link, *statements: str) -> list[Any]:
            self.packets.append(statements)
            self.before(statements)
            await self.gate.wait()
            answers = await ask(link, *statements)
            self.after(statements)
            return answers

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Link, "ask", asked)
            yield

    @property
    def open(self) -> int:
        """How many connections are open."""
        return sum(not is_closed(own) for own in self.opened)


@asynccontextmanager
async def watched_store(url: Any, **options: Any) -> AsyncIterator[tuple[MySQLStore, Interference]]:
    """A store whose connections and packets are seen."""
    store = MySQLStore(url, **options)
    interference = Interference(store)
    await store.open()
    try:
        await store.migrate()
        # That had a connection of its own, which is no part of what follows.
        interference.opened = [own for own in interference.opened if not is_closed(own)]
        async with interference.at_work():
            yield store, interference
    finally:
        await store.close()


def once(error: Exception, *, when: str = "") -> Callable[[tuple[str, ...]], None]:
    """Raise this, the first time that a statement with these words is among those sent."""
    waiting = [error]

    def strike(statements: tuple[str, ...]) -> None:
        # Not the packet that prepares a connection, which speaks of commits as well.
        prepares = any(statement.startswith("set session") for statement in statements)
        if waiting and not prepares and any(when in statement for statement in statements):
            raise waiting.pop()

    return strike


async def waits_for_a_lock(url: str) -> bool:
    """Whether anybody in this database waits for a lock."""
    found = await run(
        url,
        "select count(*) from information_schema.processlist where db = database() and "
        "(state like 'Waiting for table metadata lock%%' or time_ms > 20 and command = 'Query' "
        "and state in ('Updating', 'Update', 'Sending data', 'Statistics'))",
    )
    return bool(found[0][0])


def blocking_arguments(url: str) -> dict[str, Any]:
    """What PyMySQL takes instead of a URL."""
    arguments = connect_arguments(url)
    arguments["database"] = arguments.pop("db")
    return arguments


@contextmanager
def blocking_connection(url: str, **options: Any) -> Iterator[pymysql.Connection[Any]]:
    own = pymysql.connect(**blocking_arguments(url), **{"autocommit": True, **options})
    try:
        own.begin()
        try:
            yield own
        except BaseException:
            own.rollback()
            raise
        own.commit()
    finally:
        own.close()


# What a caller's transaction may live in.


@asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[Any]:
    async with DriverHarness(url).transaction() as own:
        yield own


@asynccontextmanager
async def raw_aiomysql_connection(url: str) -> AsyncIterator[Any]:
    async with DriverHarness(url, aiomysql).transaction() as own:
        yield own


@asynccontextmanager
async def connection_without_autocommit(url: str) -> AsyncIterator[Any]:
    async with connection(url, autocommit=False) as own:
        try:
            yield own
        except BaseException:
            await own.rollback()
            raise
        await own.commit()


CALLERS: dict[str, Begin] = {
    "asyncmy": raw_connection,
    "asyncmy without autocommit": connection_without_autocommit,
    "aiomysql": raw_aiomysql_connection,
    **of_sqlalchemy(sqlalchemy_url),
    "AsyncSession with aiomysql": of_sqlalchemy(lambda url: sqlalchemy_url(url, "aiomysql"))["AsyncSession"],
}


class MySQLBackend(SqlBackend, ServerBackend):
    """One empty database of a MariaDB."""

    async_drivers = ("asyncmy", "aiomysql")
    sync_driver = "pymysql"
    django_engine = "mysql"
    new_identity = "update nightmail_meta set identity = unhex(replace(uuid(), '-', ''))"
    deadlock = asyncmy.errors.OperationalError
    no_tables = OtherDatabase
    letter_counters = ("failures", "claims")
    lock_letters = "select id from nightmail_dead force index (primary) where id in ({ids}) for update"

    def __init__(self, url: str, server: MariaDB) -> None:
        super().__init__(url)
        self.server: MariaDB = server

    def store(self, **options: Any) -> MySQLStore:
        return MySQLStore(self.url, **options)

    @contextmanager
    def elsewhere(self) -> Iterator[MySQLBackend]:
        with self.server.fresh_database() as url:
            yield MySQLBackend(url, self.server)

    @asynccontextmanager
    async def as_user(self, *roles: str) -> AsyncIterator[MySQLBackend]:
        async with user(self.url, *roles) as url:
            yield MySQLBackend(url, self.server)

    def connection(self, url: str | None = None) -> AbstractAsyncContextManager[Any]:
        return connection(url or self.url)

    def transaction(self, url: str | None = None) -> AbstractAsyncContextManager[Any]:
        return raw_connection(url or self.url)

    async def execute(self, connection: Any, statement: str) -> list[tuple[Any, ...]]:
        return await execute(connection, statement)

    def url_with(self, driver: str) -> str:
        return sqlalchemy_url(self.url, driver)

    @property
    def outside(self) -> dict[str, tuple[Begin, str]]:
        return {"asyncmy": (connection, "begin"), "aiomysql": (partial(connection, driver=aiomysql), "begin")}

    def sync_outside(self) -> AbstractContextManager[Any]:
        return closing(pymysql.connect(**blocking_arguments(self.url), autocommit=True))

    async def connections(self) -> int:
        found = await run(
            self.url,
            "select count(*) from information_schema.processlist "
            "where db = database() and id <> connection_id()",
        )
        return int(found[0][0])

    async def waits_for_a_lock(self) -> bool:
        return await waits_for_a_lock(self.url)

    async def write_oddly(self, statement: str) -> None:
        anything = "sql_mode = 'ALLOW_INVALID_DATES', check_constraint_checks = 0"
        await self.run(f"set statement {anything} for {statement}")

    async def refuse(self, body: str, *, on: str = "insert", table: str = "messages") -> None:
        row = "new" if on == "insert" else "old"
        await self.run(
            f"create trigger refuses before {on} on nightmail_{table} for each row "
            f"begin if {row}.body = '{body}' then signal sqlstate '45000'; end if; end"
        )
