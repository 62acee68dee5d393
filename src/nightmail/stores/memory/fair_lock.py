"""A fair lock: first come, first served, for tasks and for threads."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections import deque
from concurrent.futures import Future
from threading import Lock

from nightmail.errors import StoreUnavailable


def running_loop() -> AbstractEventLoop | None:
    """The event loop of this thread, if one is running."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class FairLock:
    """A lock that tasks of any event loop wait for by suspending, and threads by blocking."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._taken = False
        self._waiting: deque[tuple[AbstractEventLoop | None, Future[None]]] = deque()

    async def acquire(self) -> None:
        """Acquire the lock until `release`; while it is taken, other tasks run."""
        turn = self._ask(asyncio.get_running_loop())
        if turn is None:
            return
        try:
            await asyncio.wrap_future(turn)
        except asyncio.CancelledError:
            if not turn.cancel():
                # Acquired as we were cancelled: without this the next waiter would wait forever.
                self.release()
            raise

    def acquire_blocking(self) -> None:
        """The same; while it is taken, this thread blocks."""
        turn = self._ask(None)
        if turn is not None:
            turn.result()

    def release(self) -> None:
        """Release the lock to the next waiter."""
        with self._guard:
            while self._waiting:
                loop, turn = self._waiting.popleft()
                # Skip waiters that gave up, or whose loop is closed.
                if not (loop and loop.is_closed()) and turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._taken = False

    def _ask(self, loop: AbstractEventLoop | None) -> Future[None] | None:
        """Take the lock; or, when it is taken, return what to wait for."""
        with self._guard:
            if not self._taken:
                self._taken = True
                return None
            if loop is None and running_loop() is not None:
                raise StoreUnavailable(
                    "another transaction is open, and waiting for it here would keep the event loop from ending it:"
                    " call synchronous code on a thread of its own"
                )
            turn: Future[None] = Future()
            self._waiting.append((loop, turn))
            return turn
