"""One connection for one kind of work.

It is opened when first needed, and reopened after it was lost or idle for long. Statements go one at a time. Once
something is sent, the caller may be cancelled, but not the work: cut in half, it would leave a claim without a holder,
or a publish that may or may not have happened. After an error a connection is rolled back, or thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.stores.mysql.connect import Connect
from nightmail.stores.mysql.errors import (
    Locked,
    is_locked,
    is_transient,
    leaves_connection_usable,
    translated,
    unreachable,
)
from nightmail.stores.mysql.link import Link
from nightmail.stores.mysql.retries import TRIES, Retries
from nightmail.stores.shared.driver_errors import below

T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
FAREWELL_SECONDS: Final = 5.0
CLOSING_SECONDS: Final = 1.0
"""How long a closing store waits for work in progress, and for the goodbye to the server."""
SHORTEST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Role:
    """What a connection is for, and how long its statements may wait."""

    name: str
    statement_seconds: int = 10
    """After this the server aborts a statement, where it can, without effect."""
    skips_locked: bool = True
    """Whether it skips locked rows. If not, it need not wait for them either: it lets others go first."""

    @property
    def patience(self) -> float:
        """Seconds after which we stop waiting for an answer: the network must be down, or the server."""
        return self.statement_seconds + 5.0


CLAIM: Final = Role("claim")
SETTLE: Final = Role("settle")
PUBLISH: Final = Role("publish", statement_seconds=30, skips_locked=False)
WATCH: Final = Role("watch", statement_seconds=5)
KEEPER: Final = Role("keeper", statement_seconds=5)


async def connected(connect: Connect, role: Role) -> Link:
    """A new connection, ready for its role."""
    link: Link | None = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            link = Link(await connect())
            await link.prepare(role.statement_seconds, skips_locked=role.skips_locked)
    except BaseException as error:
        if link is not None:
            link.terminate()
        if isinstance(error, Exception):
            better = unreachable(error, connect.where, connect.password)
            if better is not error:
                raise better from below(error)
        raise
    return link


class Lane:
    """One connection, and the queue of its users."""

    def __init__(self, role: Role, connect: Connect, retries: Retries) -> None:
        self._role = role
        self._connect = connect
        self._retries = retries
        self._free = asyncio.Lock()
        self._link: Link | None = None
        self._closed = False
        self._task: asyncio.Task[object] | None = None

    @property
    def link(self) -> Link | None:
        """The connection, if it is open."""
        return self._link

    async def run(
        self, work: Callable[[Link], Awaitable[T]], *, lost: type[StoreUnavailable] = StoreUnavailable
    ) -> T:
        """Run this on the connection; raises `lost` when it is unknown whether it was done.

        Cancelled before its turn, it is not started; after that it is finished even if nothing waits for it. Transient
        errors, with nothing written, are retried; a locked row is not.
        """
        await self._free.acquire()
        task = asyncio.create_task(self._run(work, lost))
        task.add_done_callback(_seen)
        self._task = task
        return await asyncio.shield(task)

    async def run_patiently(
        self, work: Callable[[Link], Awaitable[T]], *, lost: type[StoreUnavailable] = StoreUnavailable
    ) -> T:
        """Like `run`, retrying while a row is locked, and letting others go first."""
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
        """Finish work in progress, within `CLOSING_SECONDS`, and close the connection for good."""
        self._closed = True
        with suppress(Exception):
            async with asyncio.timeout(CLOSING_SECONDS), self._free:
                if self._link is not None:
                    await self._link.close()
        self._drop()

    async def _run(self, work: Callable[[Link], Awaitable[T]], lost: type[StoreUnavailable]) -> T:
        try:
            async with asyncio.timeout(self._role.patience + CONNECT_SECONDS):
                for attempt in range(TRIES - 1):
                    try:
                        return await self._once(work, lost)
                    except Exception as error:
                        # The driver's error is the cause: it was translated on the way here.
                        cause = error.__cause__ or error
                        if not is_transient(cause) or is_locked(cause):
                            raise
                        await self._retries.pause(cause, attempt)
                return await self._once(work, lost)
        finally:
            self._free.release()

    async def _once(self, work: Callable[[Link], Awaitable[T]], lost: type[StoreUnavailable]) -> T:
        link = await self._usable()
        try:
            async with asyncio.timeout(self._role.patience):
                result = await work(link)
            if link.in_transaction:
                # What was written is not committed, and the caller must be told.
                self._drop()
                raise lost("a transaction was left open on the store's connection: what it wrote is undone")
            return result
        except BaseException as error:
            if is_locked(error):
                self._retries.counted[error.args[0]] += 1
            await self._clean_up(link, error)
            if isinstance(error, Exception):
                better = translated(error, lost)
                if better is not error:
                    raise better from below(error)
            raise

    async def _clean_up(self, link: Link, error: BaseException) -> None:
        """Roll back what the error left open; throw away a connection in doubt."""
        if leaves_connection_usable(error):
            with suppress(Exception):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await link.ask("rollback")
                return
        self._drop()

    async def _usable(self) -> Link:
        if self._link is None or not self._link.usable:
            self._drop()
            self._refuse_if_closed()
            self._link = await connected(self._connect, self._role)
        self._refuse_if_closed()
        return self._link

    def _refuse_if_closed(self) -> None:
        # A caller that still waited would leave a connection behind that nothing closes.
        if self._closed:
            self._drop()
            raise StoreUnavailable("the store was closed")

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.terminate()


def _seen(task: asyncio.Task[object]) -> None:
    """Retrieve its result: a cancelled caller does not, and asyncio would log a complaint."""
    if not task.cancelled():
        task.exception()
