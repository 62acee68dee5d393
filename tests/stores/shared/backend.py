"""What shared tests need to know of a store: its database, its server, and how others connect to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ClassVar, Protocol, TypeAlias

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from nightmail.errors import Refused
from tests.stores.support import opened

Begin: TypeAlias = Callable[[str], AbstractAsyncContextManager[Any]]
"""Begins a transaction of a caller's in the database of this URL; commits it, or rolls it back after an error."""

BeginBlocking: TypeAlias = Callable[[str], AbstractContextManager[Any]]
"""The same in synchronous code."""


class ChangedMyMind(Exception):
    """Rolls a test's transaction back."""


class Server(Protocol):
    """One that can be stopped, killed, frozen and started again."""

    def kill(self) -> object: ...

    def start(self) -> object: ...

    def stop(self) -> object: ...

    def restart(self) -> object: ...

    def pause(self) -> object: ...

    def resume(self) -> object: ...


class Backend(ABC):
    """One empty database."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def store(self, **options: Any) -> Any:
        """A store over this database, on the clock of its server, not opened."""

    def opened(self, **options: Any) -> AbstractAsyncContextManager[Any]:
        """A store over this database, migrated and open."""
        return opened(self.store(**options))


class ServerBackend(Backend):
    """On a server that the test may kill."""

    server: Server

    @abstractmethod
    async def connections(self) -> int:
        """How many connections stores have to this database."""


class SqlBackend(Backend):
    """One that callers have transactions in."""

    async_drivers: ClassVar[tuple[str, ...]]
    """SQLAlchemy's names for the asynchronous drivers, as in its URLs."""
    sync_driver: ClassVar[str]
    django_engine: ClassVar[str]

    @abstractmethod
    def elsewhere(self) -> AbstractContextManager[SqlBackend]:
        """Another database like this one, empty; gone after the block."""

    def as_user(self, *roles: str) -> AbstractAsyncContextManager[SqlBackend]:
        """The same for a new user who has what the documentation grants these roles: only on a server with users."""
        raise NotImplementedError

    @abstractmethod
    def connection(self, url: str | None = None) -> AbstractAsyncContextManager[Any]:
        """A connection of a caller's with our driver, outside any transaction."""

    @abstractmethod
    def transaction(self, url: str | None = None) -> AbstractAsyncContextManager[Any]:
        """The same inside a transaction, at read committed: committed after the block, rolled back after an error."""

    @abstractmethod
    async def execute(self, connection: Any, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on a connection that one of the two has given."""

    async def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own, and commit it."""
        async with self.transaction() as connection:
            return await self.execute(connection, statement)

    @abstractmethod
    def url_with(self, driver: str) -> str:
        """The database for SQLAlchemy with this driver."""

    def engine(self, driver: str | None = None, **options: Any) -> AsyncEngine:
        """An engine of a caller's."""
        return create_async_engine(
            self.url_with(driver or self.async_drivers[0]), poolclass=NullPool, **options
        )

    def sync_engine(self, **options: Any) -> Engine:
        """An engine of synchronous code."""
        return create_engine(self.url_with(self.sync_driver), poolclass=NullPool, **options)

    @property
    @abstractmethod
    def outside(self) -> Mapping[str, tuple[Begin, str]]:
        """Connections outside any transaction, of every driver, and words that an error says about what to do."""

    @abstractmethod
    def sync_outside(self) -> AbstractContextManager[Any]:
        """A connection of synchronous code outside any transaction."""

    def foreign_session(self) -> AbstractAsyncContextManager[Any]:
        """A session on another kind of database."""
        return AsyncSession(create_async_engine("sqlite+aiosqlite://", poolclass=NullPool))

    @abstractmethod
    async def waits_for_a_lock(self) -> bool:
        """Whether anybody in this database waits for a lock."""

    @abstractmethod
    async def refuse(self, body: str, *, on: str = "insert", table: str = "messages") -> None:
        """Make the server refuse to insert into our table, or delete from it, a row with this body."""

    new_identity: ClassVar[str]
    """The statement after which our tables are other tables, as if they had been dropped and made again."""

    deadlock: ClassVar[type[Exception]]
    """What our driver raises for a caller whose transaction is the victim of a deadlock."""

    no_tables: ClassVar[type[Exception]]
    """What synchronous code is told by a store that was never opened, where there are no tables."""

    lock_letters: ClassVar[str]
    """The statement that locks the dead letters with these `{ids}`."""

    refused: ClassVar[type[Exception]] = Refused
    """What is raised for a row that the server refuses."""
    own_errors_in_transactions: ClassVar[bool] = False
    """Whether that is raised in a caller's transaction, too, and not the driver's own error."""
    odd: ClassVar[str] = "'odd'"
    """The body `odd` in a statement."""
    letter_counters: ClassVar[tuple[str, str]]
    """The columns that count a dead letter's own attempts and deliveries."""

    async def write_oddly(self, statement: str) -> None:
        """Write as other software does, which does not keep to our conditions."""
        await self.run(statement)
