"""One connection for one kind of work.

It is opened when first needed, and anew after it was lost. Statements go one at a time. Once a statement is sent, the
caller may be cancelled, but not the statement: torn in half it would leave a claim that nobody holds, or a publish of
which nobody knows whether it happened. A connection on which anything went wrong is thrown away, never used again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import asyncpg

from nightmail.errors import StoreUnavailable
from nightmail.stores.postgres.connect import Connect, Connection
from nightmail.stores.postgres.errors import Locked, leaves_connection_usable, translated, unreachable

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
FAREWELL_SECONDS: Final = 5.0
SHORTEST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Role:
    """What a connection is for, and how long it may wait there."""

    name: str
    statement_seconds: int = 10
    """After this the server gives up a statement, and nothing of it happens."""
    lock_milliseconds: int = 0
    """After this the server gives up waiting for a row that somebody has locked; 0: only with the statement."""

    @property
    def patience(self) -> float:
        """Seconds after which we stop waiting for the server's word: the network must be gone, or the server."""
        return self.statement_seconds + 5.0

    @property
    def settings(self) -> str:
        """To be run on a new connection. Not startup parameters: connection poolers refuse them."""
        settings = {
            "application_name": f"nightmail {self.name}",
            "statement_timeout": f"{self.statement_seconds}s",
            "lock_timeout": f"{self.lock_milliseconds}ms",
            # A plan made for a small table stays in use while the table grows; these keep it off the whole table.
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
            # The plan does not depend on the arguments, and planning costs more than most claims.
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
        }
        return "; ".join(f"set {name} to '{value}'" for name, value in settings.items())


CLAIM: Final = Role("claim", lock_milliseconds=200)
SETTLE: Final = Role("settle", lock_milliseconds=200)
PUBLISH: Final = Role("publish", statement_seconds=30, lock_milliseconds=100)
LISTEN: Final = Role("listen", statement_seconds=5)
KEEPER: Final = Role("keeper", statement_seconds=5, lock_milliseconds=200)


async def connected(connect: Connect, role: Role) -> Connection:
    """A new connection, ready for its role."""
    connection: Connection | None = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await connect()
            await connection.execute(role.settings)
    except BaseException as error:
        if connection is not None:
            connection.terminate()
        if isinstance(error, Exception):
            # A ValueError is about the URL, and may quote the password in it.
            raise unreachable(error) from (None if isinstance(error, ValueError) else error)
        raise
    return connection


class Lane:
    """One connection, and who may use it next."""

    def __init__(self, role: Role, connect: Connect) -> None:
        self._role = role
        self._connect = connect
        self._free = asyncio.Lock()
        self._connection: Connection | None = None
        self._closed = False
        self._task: asyncio.Task[object] | None = None

    @property
    def connection(self) -> Connection | None:
        """The connection, if it is open."""
        return self._connection

    async def run(
        self, work: Callable[[Connection], Awaitable[T]], *, lost: type[StoreUnavailable] = StoreUnavailable
    ) -> T:
        """Do this on the connection; `lost` is raised when nobody knows whether it was done.

        Cancelled before its turn, it is not begun; after that it is finished whether or not anybody waits for it.
        """
        await self._free.acquire()
        task = asyncio.create_task(self._run(work, lost))
        self._task = task
        return await asyncio.shield(task)

    async def run_patiently(
        self, work: Callable[[Connection], Awaitable[T]], *, lost: type[StoreUnavailable] = StoreUnavailable
    ) -> T:
        """The same, again and again while somebody's open transaction is in the way, and letting others go first."""
        pause = SHORTEST_PAUSE
        deadline = asyncio.get_running_loop().time() + self._role.statement_seconds
        while True:
            try:
                return await self.run(work, lost=lost)
            except Locked:
                if asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def close(self) -> None:
        """Finish what was begun, within reason, and close the connection for good."""
        self._closed = True
        with suppress(TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            async with asyncio.timeout(FAREWELL_SECONDS), self._free:
                if self._connection is not None:
                    await self._connection.close()
        self._drop()

    async def _run(self, work: Callable[[Connection], Awaitable[T]], lost: type[StoreUnavailable]) -> T:
        try:
            connection = await self._usable()
            try:
                async with asyncio.timeout(self._role.patience):
                    return await work(connection)
            except BaseException as error:
                if not leaves_connection_usable(error):
                    self._drop()
                if isinstance(error, Exception):
                    better = translated(error, lost)
                    if better is not error:
                        raise better from error
                raise
        finally:
            self._free.release()

    async def _usable(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._drop()
            self._refuse_if_closed()
            self._connection = await connected(self._connect, self._role)
        self._refuse_if_closed()
        return self._connection

    def _refuse_if_closed(self) -> None:
        # Whoever still stood in line would leave a connection behind that nobody closes.
        if self._closed:
            self._drop()
            raise StoreUnavailable("the store was closed")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
