"""A thread with its own event loop and connection that renews leases.

A handler that blocks the main event loop for a minute still keeps its messages.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.store import Extend, Lingers

LAST_SECONDS: Final = 0.5


class Line(Protocol):
    """A connection that opens on first use."""

    async def close(self) -> None:
        """Close it."""
        ...


L = TypeVar("L", bound=Line)


class _Work:
    """Work that runs on a thread's event loop, and how it ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[None]]) -> None:
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._lingers = False
        self._ended = _unstoppable()
        loop.call_soon_threadsafe(self._start)

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._ended.done()

    @property
    def lingers(self) -> bool:
        """Whether it was left to end by itself, and has not."""
        return self._lingers and not self.has_ended

    def cancel(self) -> None:
        """Cancel it."""
        self._loop.call_soon_threadsafe(self._cancel)

    def linger(self) -> None:
        """Let it run until it ends by itself."""
        self._lingers = True

    async def ended(self) -> None:
        """Wait until it has ended; raises its error."""
        await asyncio.wrap_future(self._ended)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._end)

    async def _run(self) -> None:
        await self._work()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)


class _Thread(Generic[L]):
    """An event loop on a thread, and a connection that only this thread uses.

    It is told what to do without waiting for it, and then does it by itself: whether those who wait for it give up, and
    even if their event loop ends. A thread and a connection that only they could end would be left behind.
    """

    def __init__(self, line: L) -> None:
        self.line = line
        self._loop = asyncio.new_event_loop()
        self._works: list[_Work] = []
        self._stopping: asyncio.Task[None] | None = None
        self._ended = _unstoppable()
        # A daemon: a program that forgets to close the store must still be able to exit.
        self._thread = threading.Thread(target=self._serve, name="nightmail-keeper", daemon=True)
        self._thread.start()

    @property
    def lingers(self) -> bool:
        """Whether it goes on for work that was left to end by itself."""
        return any(work.lingers for work in self._works)

    @property
    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._ended.done()

    def start(self, work: Callable[[], Awaitable[None]]) -> _Work:
        """Run this on the thread."""
        started = _Work(self._loop, work)
        self._works = [*(each for each in self._works if not each.has_ended), started]
        return started

    def stop(self) -> None:
        """Once all work has ended, close the connection, the loop and the thread."""
        self._loop.call_soon_threadsafe(self._begin_to_stop)

    async def ended(self) -> None:
        """Wait until the thread is gone."""
        await asyncio.wrap_future(self._ended)
        self._thread.join()

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()
        self._ended.set_result(None)

    def _begin_to_stop(self) -> None:
        self._stopping = self._loop.create_task(self._stop())
        # Even if closing fails.
        self._stopping.add_done_callback(lambda _: self._loop.stop())

    async def _stop(self) -> None:
        await asyncio.gather(*(work.ended() for work in self._works), return_exceptions=True)
        await self.line.close()
        await _end_the_rest()


class KeeperThread(Generic[L]):
    """Work off the main event loop: one thread and one connection for all of it, stopped with the last task."""

    def __init__(
        self,
        line: Callable[[], L],
        extend: Callable[[L, Sequence[Delivery], timedelta], Awaitable[list[WriteResult]]],
    ) -> None:
        self._line = line
        self._extend = extend
        self._thread: _Thread[L] | None = None
        self._works: set[_Work] = set()
        self._stopping: list[_Thread[L]] = []
        """Threads that were told to stop. After `close` they must be gone, too."""
        self._closed = False

    @asynccontextmanager
    async def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AsyncIterator[None]:
        """See `Store.run_on_keeper_thread`."""
        if self._closed:
            raise StoreUnavailable("the store was closed")
        thread = self._thread = self._thread or _Thread(self._line())
        started = thread.start(partial(work, partial(self._extend, thread.line)))
        self._works.add(started)
        try:
            yield
        finally:
            # If the store was closed meanwhile, that has ended this work too.
            if self._thread is thread:
                await self._end(thread, started, lingers)

    async def close(self) -> None:
        """End all work, close the connection, stop the thread. All of that happens, even if this is cancelled."""
        self._closed = True
        if self._thread is not None:
            for work in self._works:
                work.cancel()
            self._stop(self._thread)
        await asyncio.gather(*(thread.ended() for thread in self._stopping if not thread.lingers))

    async def _end(self, thread: _Thread[L], work: _Work, lingers: Lingers | None) -> None:
        # Nothing is waited for before everything is told to end: we may be cancelled while we wait.
        stays = lingers is not None and lingers()
        if stays:
            work.linger()
        else:
            work.cancel()
        self._works.remove(work)
        is_last = not self._works
        if is_last:
            self._stop(thread)
        if is_last and not thread.lingers:
            await thread.ended()
        if not stays:
            await work.ended()

    def _stop(self, thread: _Thread[L]) -> None:
        self._thread = None
        self._works.clear()
        thread.stop()
        self._stopping = [each for each in [*self._stopping, thread] if not each.has_ended]


def _unstoppable() -> Future[None]:
    """A future that is cancelled by none of those who wait for it."""
    future = Future[None]()
    future.set_running_or_notify_cancel()
    return future


async def _end_the_rest() -> None:
    """Cancel what still runs on this loop, such as a statement that a hanging server never answered."""
    if rest := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=LAST_SECONDS)
