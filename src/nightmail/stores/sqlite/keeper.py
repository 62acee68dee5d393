"""A thread with an event loop and a connection of its own, for keeping leases alive.

A handler that blocks the event loop blocks everything that runs on it. Leases must be renewed all the same, or
another worker takes over what this one is still working on.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from nightmail.message import Delivery
from nightmail.outcome import Standing
from nightmail.store import Extend
from nightmail.stores.sqlite.errors import is_busy, translated
from nightmail.stores.sqlite.jobs import Failed, Succeeded
from nightmail.stores.sqlite.leases import Leases
from nightmail.stores.sqlite.line import Line
from nightmail.stores.sqlite.steps import carry_out
from nightmail.stores.sqlite.together import write

EXTEND_SECONDS: Final = 0.2
"""How long extending waits for the lock: long enough for somebody's commit, too short for somebody's transaction."""


class Keeper:
    """Runs pieces of work beside the event loop, all on one thread, which lives while there is one."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], leases: Leases) -> None:
        self._connect = connect
        self._leases = leases
        self._thread: _LoopThread | None = None
        self._works = 0

    @asynccontextmanager
    async def beside(self, work: Callable[[Extend], Awaitable[None]]) -> AsyncIterator[None]:
        """Run this work until the block is left. Its failure is the block's: nobody else would hear of it."""
        if self._thread is None:
            self._thread = _LoopThread(Line(self._connect), self._leases)
        thread = self._thread
        self._works += 1
        running = _Running(thread, work)
        try:
            yield
        finally:
            try:
                await running.end()
            finally:
                self._works -= 1
                if self._works == 0:
                    self._thread = None
                    await thread.end()
        if running.failure is not None:
            raise running.failure


class _Running:
    """One piece of work on the thread."""

    def __init__(self, thread: _LoopThread, work: Callable[[Extend], Awaitable[None]]) -> None:
        self.failure: BaseException | None = None
        self._thread = thread
        self._work = work
        self._ended: Future[None] = Future()
        self._task: asyncio.Task[None] | None = None
        thread.loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        self._task = self._thread.loop.create_task(self._run())
        # Not in the coroutine: cancelled before its first step, it would never get to say so.
        self._task.add_done_callback(self._note_end)

    async def _run(self) -> None:
        await self._work(self._thread.extend)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.failure = task.exception()
        self._ended.set_result(None)

    async def end(self) -> None:
        """Cancel the work and wait until it has ended."""
        self._thread.loop.call_soon_threadsafe(self._cancel)
        await asyncio.shield(asyncio.wrap_future(self._ended))

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _LoopThread:
    """An event loop on a thread, with a connection that only the thread uses."""

    def __init__(self, line: Line, leases: Leases) -> None:
        self.loop = asyncio.new_event_loop()
        self._line = line
        self._leases = leases
        self._enough = asyncio.Event()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, name="nightmail-sqlite-keeper", daemon=True)
        self._thread.start()

    async def extend(self, deliveries: Sequence[Delivery], lease: timedelta) -> Sequence[Standing]:
        """Let these leases run on. It blocks this loop, on which there is nothing else to do."""
        if not deliveries:
            return []
        try:
            (answer,) = write(
                self._line,
                [lambda connection: carry_out(connection, self._leases.extend(deliveries, lease))],
                lasting=False,
            )
        except sqlite3.Error as error:
            if is_busy(error):
                return [Standing.BUSY] * len(deliveries)
            raise translated(error) from error
        match answer:
            case Succeeded(standings):
                extended: list[Standing] = standings
                return extended
            case Failed(failure):
                raise failure

    async def end(self) -> None:
        """End the thread, and wait until it has ended."""
        self.loop.call_soon_threadsafe(self._enough.set)
        await asyncio.shield(asyncio.wrap_future(self._ended))
        self._thread.join()

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._wait())
        finally:
            self._line.drop()
            self._ended.set_result(None)

    async def _wait(self) -> None:
        await self._enough.wait()
