"""A thread with an event loop and a connection of its own, for keeping leases alive.

A handler that blocks the event loop blocks everything that runs on it. Leases must be renewed all the same, or
another worker takes over what this one is still working on.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from nightmail.message import Delivery
from nightmail.outcome import Standing
from nightmail.store import Extend
from nightmail.stores.sqlite.errors import is_busy, translated
from nightmail.stores.sqlite.jobs import Done
from nightmail.stores.sqlite.leases import Leases
from nightmail.stores.sqlite.line import Line
from nightmail.stores.sqlite.steps import carry_out
from nightmail.stores.sqlite.together import in_savepoint

EXTEND_SECONDS: Final = 0.2
"""How long extending waits for the lock: long enough for a commit of our own, too short for a caller's transaction."""


class Keeper:
    """Runs pieces of work beside the event loop, all on one thread, which lives while there is one."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], leases: Leases) -> None:
        self._connect = connect
        self._leases = leases
        self._thread: _LoopThread | None = None
        self._users = 0

    @asynccontextmanager
    async def beside(self, work: Callable[[Extend], Awaitable[None]]) -> AsyncIterator[None]:
        """Run this work until the block is left."""
        if self._thread is None:
            self._thread = _LoopThread(lambda: Line(self._connect), self._leases)
        thread = self._thread
        self._users += 1
        running = thread.start(work)
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0:
                self._thread = None
            await thread.end(running, last=self._users == 0)
        ...
