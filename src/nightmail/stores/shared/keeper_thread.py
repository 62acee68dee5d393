"""A thread with its own event loop and connection that renews leases.

A handler that blocks the main event loop for a minute still keeps its messages.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery
from nightmail.outcome import WriteResult
from nightmail.store import Extend, Lingers

T = TypeVar("T")

LAST_SECONDS: Final = 0.5


class Line(Protocol):
    """A connection that opens on first use."""

    async def close(self) -> None:
        """Close it."""
        ...


L = TypeVar("L", bound=Line)


class _Thread(Generic[L]):
    """An event loop on a thread, and a connection that only this thread uses."""

    def __init__(self, line: L) -> None:
        self.line = line
        self._loop = asyncio.new_event_loop()
        self._lingering: set[asyncio.Task[None]] = set()
        # A daemon: a program that forgets to close the store must still be able to exit.
        self._thread = threading.Thread(target=self._serve, name="nightmail-keeper", daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this on the thread, to its end, even if the caller is cancelled."""
        return await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop)))

    def leave(self, task: asyncio.Task[None]) -> None:
        """Let this task run until it ends by itself."""
        self._lingering.add(task)

    async def stop(self) -> None:
        """Close the connection, the loop and the thread; if a task lingers, once that has ended."""
        if not all(task.done() for task in self._lingering):
            asyncio.run_coroutine_threadsafe(self._stop_later(), self._loop)
            return
        await self.run(self.line.close())
        await self.run(_end_the_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _stop_later(self) -> None:
        await asyncio.wait(self._lingering)
        await self.line.close()
        self._loop.stop()


@dataclass(frozen=True, slots=True)
class _Running(Generic[L]):
    """A task, and the thread it runs on."""

    thread: _Thread[L]
    task: asyncio.Task[None]


class KeeperThread(Generic[L]):
    """Work off the main event loop: one thread and one connection for all of it, stopped with the last task.

    Starting, ending and closing happen one at a time. A thread that is stopped while a call to it is pending never
    answers, and after `close` the thread must be gone, even if another task was already stopping it.
    """

    def __init__(
        self,
        line: Callable[[], L],
        extend: Callable[[L, Sequence[Delivery], timedelta], Awaitable[list[WriteResult]]],
    ) -> None:
        self._line = line
        self._extend = extend
        self._thread: _Thread[L] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._closed = False

    @asynccontextmanager
    async def run_on_keeper_thread(
        self, work: Callable[[Extend], Awaitable[None]], *, lingers: Lingers | None = None
    ) -> AsyncIterator[None]:
        """See `Store.run_on_keeper_thread`."""
        beginning = asyncio.ensure_future(self._begin(work))
        try:
            await asyncio.shield(beginning)
            yield
        finally:
            await _to_its_end(self._end(beginning, lingers))

    async def close(self) -> None:
        """End all work, close the connection, stop the thread."""
        async with self._turn:
            self._closed = True
            if self._thread is not None:
                for task in self._tasks:
                    await self._thread.run(_cancelled(task))
                await self._stop(self._thread)

    async def _begin(self, work: Callable[[Extend], Awaitable[None]]) -> _Running[L]:
        async with self._turn:
            if self._closed:
                raise StoreUnavailable("the store was closed")
            if self._thread is None:
                self._thread = _Thread(self._line())
            task = await self._thread.run(_started(work, partial(self._extend, self._thread.line)))
            self._tasks.add(task)
            return _Running(self._thread, task)

    async def _end(self, beginning: Awaitable[_Running[L]], lingers: Lingers | None) -> None:
        running = await beginning
        async with self._turn:
            if self._thread is not running.thread:
                return  # The store was closed meanwhile, which ended this work too.
            self._tasks.remove(running.task)
            stays = lingers is not None and lingers()
            try:
                if stays:
                    running.thread.leave(running.task)
                else:
                    await running.thread.run(_cancelled(running.task))
            finally:
                if not self._tasks:
                    await self._stop(running.thread)
        if stays:
            return
        if not running.task.cancelled() and (error := running.task.exception()) is not None:
            raise error

    async def _stop(self, thread: _Thread[L]) -> None:
        self._thread = None
        self._tasks.clear()
        await thread.stop()


async def _started(work: Callable[[Extend], Awaitable[None]], extend: Extend) -> asyncio.Task[None]:
    async def run() -> None:
        await work(extend)

    return asyncio.create_task(run())


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _end_the_rest() -> None:
    """Cancel what still runs on this loop, such as a statement that a hanging server never answered."""
    if rest := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=LAST_SECONDS)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait until this is done, even if cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
