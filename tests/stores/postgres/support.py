"""The harnesses that drive the Postgres store through the conformance suite, and words for tests that only it has."""

from __future__ import annotations

import asyncio
import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import Any, ClassVar

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from nightmail.errors import OtherDatabase
from nightmail.limits import MAX_BODY_BYTES
from nightmail.store import Blocking
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance import Harness
from testkit.servers import Postgres
from tests.stores.documented_rights import PASSWORD, grants, url_as
from tests.stores.shared.backend import Begin, ServerBackend, SqlBackend
from tests.stores.shared.callers import of_sqlalchemy
from tests.stores.support import opened

EMPTY = """
    delete from notes;
    delete from nightmail_messages;
    delete from nightmail_dead;
    delete from nightmail_delivered;
    delete from nightmail_dedup;
    delete from nightmail_controls;
    delete from nightmail_workers;
    delete from nightmail_consumers;
"""


class PostgresHarness(Harness):
    """One database, emptied before each test. The caller's own rows are in a table beside ours.

    Stores and callers connect with `url`. What only the owner of the tables may do is done with `owner`.
    """

    _migrated: ClassVar[set[str]] = set()
    _emptying: ClassVar[tuple[str, psycopg.Connection] | None] = None
    """The connection that empties the database, and whose: a new one for each test would cost a quarter of its time."""

    def __init__(self, url: str, *, owner: str | None = None) -> None:
        super().__init__()
        self.url = url
        self.owner = owner or url

    async def open(
        self, *, keep_delivered: bool = False, max_body_bytes: int = MAX_BODY_BYTES
    ) -> PostgresStore:
        store = PostgresStore(
            self.url, clock=self.clock, keep_delivered=keep_delivered, max_body_bytes=max_body_bytes
        )
        await store.open()
        if self.owner not in self._migrated:
            await store.migrate()
        return store

    def unopened(self) -> PostgresStore:
        return PostgresStore(self.url, clock=self.clock)

    def connection(self, url: str) -> AbstractAsyncContextManager[Any]:
        """A connection of a caller's, or of the owner's."""
        return connection(url)

    async def make_empty(self) -> None:
        if self.owner not in self._migrated:
            await make_tables(self.owner)
            self._migrated.add(self.owner)
        try:
            self._kept_connection().execute(EMPTY)
        except psycopg.OperationalError:  # The server was restarted since the last test.
            self._kept_connection().execute(EMPTY)

    def _kept_connection(self) -> psycopg.Connection:
        if kept := PostgresHarness._emptying:
            owner, own = kept
            if owner == self.owner and not own.closed:
                return own
            own.close()
        own = psycopg.connect(self.owner, autocommit=True, prepare_threshold=None)
        PostgresHarness._emptying = self.owner, own
        return own

    async def written(self) -> list[str]:
        async with self.connection(self.owner) as own:
            return [row["value"] for row in await own.fetch("select value from notes order by value")]

    @asynccontextmanager
    async def outside_any_transaction(self) -> AsyncIterator[Any]:
        async with self.connection(self.url) as own:
            yield own

    @abstractmethod
    async def write(self, transaction: Any, value: str) -> None: ...


class AsyncpgHarness(PostgresHarness):
    """Callers use the driver itself."""

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[Any]:
        isolation = "repeatable_read" if repeatable_read else "read_committed"
        async with self.connection(self.url) as own, own.transaction(isolation=isolation):
            yield own

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with psycopg.connect(self.url) as own:
            yield Blocking(own)

    async def write(self, transaction: Any, value: str) -> None:
        await transaction.execute("insert into notes values ($1)", value)


class PsycopgHarness(AsyncpgHarness):
    """Callers use the other driver."""

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[Any]:
        level = psycopg.IsolationLevel.REPEATABLE_READ if repeatable_read else None
        async with await psycopg.AsyncConnection.connect(self.url) as own:
            await own.set_isolation_level(level)
            yield own

    async def write(self, transaction: Any, value: str) -> None:
        await transaction.execute("insert into notes values (%s)", [value])

    @asynccontextmanager
    async def outside_any_transaction(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as own:
            yield own


class SqlalchemyHarness(PostgresHarness):
    """Callers use a connection of SQLAlchemy's: a session would begin again when it is used after its end."""

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[Any]:
        engine = create_async_engine(
            sqlalchemy_url(self.url),
            poolclass=NullPool,
            isolation_level="REPEATABLE READ" if repeatable_read else "READ COMMITTED",
        )
        try:
            async with engine.begin() as own:
                yield own
        finally:
            await engine.dispose()

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        engine = create_engine(psycopg_url(self.url), poolclass=NullPool)
        try:
            with engine.begin() as own:
                yield Blocking(own)
        finally:
            engine.dispose()

    async def write(self, transaction: Any, value: str) -> None:
        await transaction.execute(text("insert into notes values (:value)"), {"value": value})


def sqlalchemy_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+asyncpg://")


def psycopg_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


@asynccontextmanager
async def connection(url: str, **options: Any) -> AsyncIterator[Any]:
    """A connection that is not the store's."""
    own = await asyncpg.connect(url, **options)
    try:
        yield own
    finally:
        await own.close()


async def make_tables(owner: str) -> None:
    """Make the tables of the store, and the table of its callers."""
    async with open_store(owner), connection(owner) as own:
        await own.execute("create table if not exists notes (value text not null)")


@asynccontextmanager
async def user(owner: str, *roles: str, with_notes: bool = False) -> AsyncIterator[str]:
    """The URL of a new user who has what the documentation grants these roles, and may write the callers' table."""
    name = f"nightmail_{secrets.token_hex(4)}"
    async with connection(owner) as own:
        await own.execute(f"create role {name} login password '{PASSWORD}'")
        for role in roles:
            for grant in grants("Postgres", role, to=name):
                await own.execute(grant)
        if with_notes:
            await own.execute(f"grant insert on notes to {name}")
    try:
        yield url_as(owner, name)
    finally:
        async with connection(owner) as own:
            await own.execute(f"drop owned by {name}; drop role {name}")


def open_store(url: Any, **options: Any) -> AbstractAsyncContextManager[PostgresStore]:
    """A store by its own clock, migrated and open."""
    return opened(PostgresStore(url, **options))


async def channel(own: Any, table: str = "nightmail_meta") -> str:
    """On which channel the store of these tables is woken."""
    identity = await own.fetchval(f"select identity from {table}")
    return f"nightmail_{identity.hex}"


class Watch:
    """The connections that a store opens, and the statements it sends on them. Begin before it is opened."""

    def __init__(self, store: PostgresStore) -> None:
        self.opened: list[Any] = []
        self._sent: list[str] = []
        connect = store._connect

        async def watched() -> Any:
            own = await connect()
            own.add_query_logger(lambda record: self._sent.append(record.query))
            self.opened.append(own)
            return own

        store._connect = watched

    @property
    def open(self) -> int:
        """How many connections are open."""
        return sum(not own.is_closed() for own in self.opened)

    async def sent(self) -> list[str]:
        """The statements since the last time: their first words."""
        await asyncio.sleep(0)
        sent, self._sent = self._sent, []
        return [" ".join(statement.split()[:3]) for statement in sent]


@asynccontextmanager
async def watched_store(url: Any, **options: Any) -> AsyncIterator[tuple[PostgresStore, Watch]]:
    """A store whose connections and statements are seen."""
    store = PostgresStore(url, **options)
    watch = Watch(store)
    await store.open()
    try:
        await store.migrate()
        yield store, watch
    finally:
        await store.close()


async def backends(own: Any, role: str = "%") -> list[int]:
    """The server's processes for the stores in this database."""
    found = await own.fetch(
        "select pid from pg_stat_activity where datname = current_database() and application_name like $1",
        f"nightmail {role}",
    )
    return [row["pid"] for row in found]


# What a caller's transaction may live in.


@asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[Any]:
    async with connection(url) as own, own.transaction():
        yield own


@asynccontextmanager
async def pooled_connection(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as own, own.transaction():
        yield own


@asynccontextmanager
async def psycopg_connection(url: str, **options: Any) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, **options) as own:
        yield own


@asynccontextmanager
async def psycopg_block(url: str) -> AsyncIterator[Any]:
    async with psycopg_connection(url, autocommit=True) as own, own.transaction():
        yield own


CALLERS: dict[str, Begin] = {
    "asyncpg": raw_connection,
    "asyncpg, pooled": pooled_connection,
    "psycopg": psycopg_connection,
    "psycopg in a block": psycopg_block,
    **of_sqlalchemy(sqlalchemy_url),
    **{f"{kind} with psycopg": begin for kind, begin in of_sqlalchemy(psycopg_url).items()},
}


class PostgresBackend(SqlBackend, ServerBackend):
    """One empty database of a Postgres."""

    async_drivers = ("asyncpg", "psycopg")
    sync_driver = "psycopg"
    django_engine = "postgresql"
    new_identity = "update nightmail_meta set identity = gen_random_uuid()"
    deadlock = asyncpg.DeadlockDetectedError
    no_tables = OtherDatabase
    letter_counters = ("failures", "claims")
    lock_letters = "select id from nightmail_dead where id in ({ids}) for update"

    def __init__(self, url: str, server: Postgres) -> None:
        super().__init__(url)
        self.server: Postgres = server

    def store(self, **options: Any) -> PostgresStore:
        return PostgresStore(self.url, **options)

    @contextmanager
    def elsewhere(self) -> Iterator[PostgresBackend]:
        with self.server.fresh_database() as url:
            yield PostgresBackend(url, self.server)

    @asynccontextmanager
    async def as_user(self, *roles: str) -> AsyncIterator[PostgresBackend]:
        async with user(self.url, *roles) as url:
            yield PostgresBackend(url, self.server)

    def connection(self, url: str | None = None) -> AbstractAsyncContextManager[Any]:
        return connection(url or self.url)

    def transaction(self, url: str | None = None) -> AbstractAsyncContextManager[Any]:
        return raw_connection(url or self.url)

    async def execute(self, connection: Any, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await connection.fetch(statement)]

    def url_with(self, driver: str) -> str:
        return self.url.replace("postgresql://", f"postgresql+{driver}://")

    @property
    def outside(self) -> dict[str, tuple[Begin, str]]:
        return {
            "asyncpg": (connection, "transaction"),
            "psycopg": (partial(psycopg_connection, autocommit=True), r"connection\.transaction\(\)"),
        }

    def sync_outside(self) -> AbstractContextManager[Any]:
        return psycopg.connect(self.url, autocommit=True)

    async def connections(self) -> int:
        async with connection(self.url) as own:
            return len(await backends(own))

    async def waits_for_a_lock(self) -> bool:
        found = await self.run(
            "select count(*) from pg_stat_activity "
            "where datname = current_database() and wait_event_type = 'Lock'"
        )
        return bool(found[0][0])

    async def refuse(self, body: str, *, on: str = "insert", table: str = "messages") -> None:
        row = "new" if on == "insert" else "old"
        async with connection(self.url) as own:
            await own.execute(
                f"create function refuse() returns trigger language plpgsql as $$ "
                f"begin if {row}.body = '{body}' then raise exception 'no'; end if; return {row}; end $$; "
                f"create trigger refuse before {on} on nightmail_{table} for each row execute function refuse()"
            )
