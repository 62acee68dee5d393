"""One connection for one kind of work.

It opens on first use, and again after it was lost. Statements run one at a time. Once a statement is sent, the caller
may be cancelled, but not the statement: cut off halfway it would leave a claim without a holder, or a publish with an
unknown result. A connection on which anything went wrong is thrown away, never reused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.stores.postgres.connect import Connect, Connector
from nightmail.stores.postgres.errors import (
    Locked,
    is_undefined,
    leaves_connection_usable,
    shown_cause,
    translated,
    unreachable,
)
from nightmail.stores.postgres.link import Link, NotSent, Role
from nightmail.stores.postgres.place import Place

__all__ = ["CLAIM", "KEEPER", "LISTEN", "MIGRATE", "PUBLISH", "SETTLE", "TIMERS", "Lane", "Role", "connected"]

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
FAREWELL_SECONDS: Final = 1.5
"""All connections of a store close at the same time, within two seconds."""
SHORTEST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5


CLAIM: Final = Role("claim", lock_milliseconds=200)
SETTLE: Final = Role("settle", lock_milliseconds=200)
PUBLISH: Final = Role("publish", statement_seconds=30, lock_milliseconds=100)
# Short: a publish that waits for a timer id keeps those of other timer ids waiting.
TIMERS: Final = Role("timers", statement_seconds=30, lock_milliseconds=20)
# An index of a large table takes its time. A migration sets its own lock timeout.
MIGRATE: Final = Role("migrate", statement_seconds=24 * 3600)
LISTEN: Final = Role("listen", statement_seconds=5)
KEEPER: Final = Role("keeper", statement_seconds=5, lock_milliseconds=200)


async def connected(connect: Connect, role: Role, place: Place | None = None) -> Link:
    """A new connection, ready for its role."""
    link: Link | None = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            link = Link(await connect(), role, place)
            await link.prepare()
            if link.pooled and isinstance(connect, Connector) and connect.forgo_names():
                link.terminate()
                link = Link(await connect(), role, place)
                await link.prepare()
            await link.find_tables()
    except BaseException as error:
        if link is not None:
            link.terminate()
        if isinstance(error, TimeoutError):
            where = connect.where if isinstance(connect, Connector) else "the server"
            raise unreachable(error, where) from error
        if isinstance(error, Exception):
            better = translated(error, StoreUnavailable)
            if better is not error:
                raise better from shown_cause(error)
        raise
    return link


class Lane:
    """One connection, used by one caller at a time."""

    def __init__(self, role: Role, connect: Connect, place: Place | None = None) -> None:
        """`place` knows the schema of our tables; without it, statements are sent as written."""
        self._role = role
        self._connect = connect
        self._place = place
        self._free = asyncio.Lock()
        self._connection: Link | None = None
        self._closed = False
        self._task: asyncio.Task[object] | None = None

    @property
    def connection(self) -> Link | None:
        """The connection, if it is open."""
        return self._connection

    async def run(
        self, work: Callable[[Link], Awaitable[T]], *, lost: type[StoreUnavailable] = StoreUnavailable
    ) -> T:
        """Run `work` on the connection; raise `lost` if it is unknown whether it was done.

        If cancelled before its turn, it does not start; after that it runs to its end even if the caller is cancelled.
        """
        await self._free.acquire()
        task = asyncio.create_task(self._run(work, lost))
        task.add_done_callback(_seen)
        self._task = task
        return await asyncio.shield(task)

    async def run_patiently(
        self, work: Callable[[Link], Awaitable[T]], *, lost: type[StoreUnavailable] = StoreUnavailable
    ) -> T:
        """Like `run`, retrying while a row is locked, and letting other callers go first."""
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
        """Finish the current work, for a limited time, and close the connection for good."""
        self._closed = True
        with suppress(Exception):
            async with asyncio.timeout(FAREWELL_SECONDS), self._free:
                if self._connection is not None:
                    await self._connection.close()
        self._drop()

    async def _run(self, work: Callable[[Link], Awaitable[T]], lost: type[StoreUnavailable]) -> T:
        try:
            try:
                return await self._once(work, lost)
            except NotSent:
                # The server had closed the connection, and nothing was sent: use a new one.
                return await self._once(work, lost)
        finally:
            self._free.release()

    async def _once(self, work: Callable[[Link], Awaitable[T]], lost: type[StoreUnavailable]) -> T:
        link = await self._usable()
        link.begin()
        try:
            async with asyncio.timeout(self._role.patience):
                done = await work(link)
            if link.in_transaction:
                # Should never happen: the work looks done, but is not committed.
                raise lost("a transaction was left open on a connection to Postgres")
        except BaseException as error:
            if not leaves_connection_usable(error) or link.in_transaction:
                self._drop()
            if self._place is not None and is_undefined(error):
                self._place.found(None)
            if isinstance(error, Exception):
                better = translated(error, lost)
                if better is not error:
                    raise better from shown_cause(error)
            raise
        return done

    async def _usable(self) -> Link:
        link = self._connection
        if link is None or link.is_closed() or link.in_transaction:
            self._drop()
            self._refuse_if_closed()
            link = self._connection = await connected(self._connect, self._role, self._place)
        self._refuse_if_closed()
        await link.find_tables()
        return link

    def _refuse_if_closed(self) -> None:
        # A caller still waiting for its turn would open a connection that nothing closes.
        if self._closed:
            self._drop()
            raise StoreUnavailable("the store was closed")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _seen(task: asyncio.Task[object]) -> None:
    """Mark the error as retrieved: a cancelled caller does not get it, and asyncio must not log it."""
    if not task.cancelled():
        task.exception()
