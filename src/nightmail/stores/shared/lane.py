"""One connection for one kind of work.

It opens on first use, and again after it was lost. Work runs one piece at a time. Once anything is sent, the caller may
be cancelled, but not the work: cut off halfway it would leave a claim without a holder, or a publish with an unknown
result. A connection in doubt is thrown away, never reused.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.stores.shared.to_the_end import forget_error

T = TypeVar("T")


class Link(Protocol):
    """One of our connections."""

    @property
    def usable(self) -> bool:
        """Whether it is open and outside of any transaction, as far as known."""
        ...

    def terminate(self) -> None:
        """Drop the connection at once."""
        ...

    async def close(self) -> None:
        """Close the connection gracefully."""
        ...


L = TypeVar("L", bound=Link)


class Lane(ABC, Generic[L]):
    """One connection, used by one caller at a time."""

    closing_seconds: ClassVar[float] = 1.5
    """How long closing waits for work in progress and the goodbye. All connections of a store close at once."""

    def __init__(self) -> None:
        self._free = asyncio.Lock()
        self._link: L | None = None
        self._closed = False
        self._task: asyncio.Task[object] | None = None

    # ------------------------------------------------------------------------- what a store adds

    @abstractmethod
    async def _connect(self) -> L:
        """A new connection, ready for its role."""

    @abstractmethod
    def _patience(self, work: Callable[[L], Awaitable[Any]]) -> float:
        """Seconds after which we stop waiting for an answer: the network or the server must be gone."""

    @abstractmethod
    def _translated(self, error: Exception, lost: type[StoreUnavailable]) -> Exception:
        """The driver's error as one of ours; the same error if it already is."""

    @abstractmethod
    def _shown(self, error: Exception) -> Exception | None:
        """The cause to show with it: no more of the driver's error than may be in a log."""

    @abstractmethod
    async def _clean_up(self, link: L, error: BaseException) -> bool:
        """After an error: whether the connection can be used again. Undoes what the error left open."""

    def _check_finished(self, link: L, lost: type[StoreUnavailable]) -> None:
        """Raise if the work returned, but is not done."""

    async def _tries_again(self, error: Exception, attempt: int) -> bool:
        """Whether to try once more, after a pause if one is needed: nothing was written."""
        return False

    # ------------------------------------------------------------------------------------ its use

    @property
    def link(self) -> L | None:
        """The connection, if it is open."""
        return self._link

    async def run(
        self, work: Callable[[L], Awaitable[T]], *, lost: type[StoreUnavailable] = StoreUnavailable
    ) -> T:
        """Run `work` on the connection; raise `lost` if it is unknown whether it was done.

        If cancelled before its turn, it does not start; after that it runs to its end even if the caller is cancelled.
        """
        await self._free.acquire()
        task = asyncio.create_task(self._run(work, lost))
        task.add_done_callback(forget_error)
        self._task = task
        return await asyncio.shield(task)

    async def run_here(self, work: Callable[[L], Awaitable[T]], *, lost: type[StoreUnavailable]) -> T:
        """Like `run`, in the task of the caller, which must be one that is never cancelled."""
        await self._free.acquire()
        return await self._run(work, lost)

    async def close(self) -> None:
        """Finish the current work, for a limited time, and close the connection for good."""
        self._closed = True
        try:
            with suppress(Exception):
                async with asyncio.timeout(self.closing_seconds), self._free:
                    if self._link is not None:
                        await self._link.close()
        finally:
            self._drop()

    def terminate(self) -> None:
        """Drop the connection at once, for good."""
        self._closed = True
        self._drop()

    async def _run(self, work: Callable[[L], Awaitable[T]], lost: type[StoreUnavailable]) -> T:
        attempt = 0
        try:
            while True:
                try:
                    link = await self._usable()
                    try:
                        async with asyncio.timeout(self._patience(work)):
                            done = await work(link)
                        self._check_finished(link, lost)
                        return done
                    except BaseException as error:
                        if not await self._clean_up(link, error):
                            self._drop()
                        if isinstance(error, Exception):
                            better = self._translated(error, lost)
                            if better is not error:
                                raise better from self._shown(error)
                        raise
                except Exception as error:
                    if not await self._tries_again(error, attempt):
                        raise
                attempt += 1
        finally:
            self._free.release()

    async def _usable(self) -> L:
        link = self._link
        if link is None or not link.usable:
            self._drop()
            self._refuse_if_closed()
            link = self._link = await self._connect()
        self._refuse_if_closed()
        return link

    def _refuse_if_closed(self) -> None:
        # A caller still waiting for its turn would open a connection that nothing closes.
        if self._closed:
            self._drop()
            raise StoreUnavailable("the store was closed")

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.terminate()
