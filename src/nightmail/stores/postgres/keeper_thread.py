"""A thread with an event loop and a connection of its own, on which leases are renewed.

A handler that blocks the event loop for a minute keeps its messages all the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from nightmail.message import Delivery
from nightmail.outcome import Standing
from nightmail.store import Extend
from nightmail.stores.postgres.connect import Connect
from nightmail.stores.postgres.lane import KEEPER, Lane

T = TypeVar("T")


class _Thread:
    """An event loop on a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that forgets to close the store must still be able to end.
        self._thread = threading.Thread(target=self._loop.run_forever, name="nightmail-keeper", daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this there, to its end, whether or not we are still waited for."""
        return await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop)))

    async def stop(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()


class KeeperThread:
    """Work beside the event loop: one thread and one connection for all of it, stopped with the last."""

    def __init__(
        self,
        connect: Connect,
        extend: Callable[[Lane, Sequence[Delivery], timedelta], Awaitable[list[Standing]]],
    ) -> None:
        self._connect = connect
        self._extend = extend
        self._thread: _Thread | None = None
        self._lane: Lane | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._users = 0

    @asynccontextmanager
    async def beside(self, work: Callable[[Extend], Awaitable[None]]) -> AsyncIterator[None]:
        """See `Store.beside`."""
        if self._thread is None:
            self._thread = _Thread()
        thread = self._thread
        self._users += 1
        try:
            beginning = asyncio.ensure_future(thread.run(self._begin(work)))
            try:
                task = await asyncio.shield(beginning)
            except asyncio.CancelledError:
                await thread.run(self._end(await beginning))
                raise
            try:
                yield
            finally:
                # Unless the store was closed meanwhile, and all of it ended with it.
                if self._thread is thread:
                    await thread.run(self._end(task))
        finally:
            if self._thread is thread:
                self._users -= 1
                if self._users == 0:
                    await self.close()

    async def close(self) -> None:
        """End all work, close the connection, stop the thread."""
        thread, self._thread = self._thread, None
        lane, self._lane = self._lane, None
        tasks, self._tasks = self._tasks, set()
        self._users = 0
        if thread is None:
            return
        for task in tasks:
            await thread.run(_cancelled(task))
        if lane is not None:
            await thread.run(lane.close())
        await thread.stop()

    async def _begin(self, work: Callable[[Extend], Awaitable[None]]) -> asyncio.Task[None]:
        if self._lane is None:
            self._lane = Lane(KEEPER, self._connect)
        lane = self._lane

        async def extend(deliveries: Sequence[Delivery], lease: timedelta) -> list[Standing]:
            return await self._extend(lane, deliveries, lease)

        async def run() -> None:
            await work(extend)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        return task

    async def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        await _cancelled(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
