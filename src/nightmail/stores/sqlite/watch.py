"""Noticing what others have written: SQLite tells nobody, but it can be asked cheaply."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nightmail.bell import Bell, BellTower

WATCH_SECONDS: Final = 0.02
"""How often to ask while somebody listens: seven microseconds of work each time."""


class WatchedTower(BellTower):
    """The bells of a store. While one hangs, the writing thread asks whether others have written, and rings all.

    Bells are hung, taken down and rung on the event loop; `look` is called on the thread.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        super().__init__()
        self._on_first = on_first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen: tuple[sqlite3.Connection, int] | None = None
        self._looked_at = 0.0

    def hang(self, bell: Bell) -> None:
        """From now on this bell rings too."""
        self._loop = asyncio.get_running_loop()
        first = self.empty
        super().hang(bell)
        if first:
            # What was written while nobody listened rings nobody: whoever listens looks first.
            self._seen = None
            self._on_first()

    def look(self, connection: sqlite3.Connection) -> None:
        """Ring all if another connection has written since the last look.

        A new connection counts as a change: anything may have been missed before it was made. Busy threads come by
        more often than they should look: every ring makes all workers look, and those are not free.
        """
        now = time.monotonic()
        if self._seen is not None and now - self._looked_at < WATCH_SECONDS:
            return
        self._looked_at = now
        ((version,),) = connection.execute("PRAGMA data_version").fetchall()
        seen, self._seen = self._seen, (connection, version)
        if seen is not None and seen != self._seen and self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed: nobody is left to be woken.
                self._loop.call_soon_threadsafe(self.ring_all)
