"""Noticing what others have written: SQLite tells nobody, but it can be asked cheaply."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nightmail.bell import Bell, BellTower

WATCH_SECONDS: Final = 0.02
"""How often to ask while somebody listens: seven microseconds of work each time."""


class WatchedTower(BellTower):
    """The bells of a store. While one hangs, a thread asks whether another connection has written, and rings all.

    Hung, taken down and rung on the event loop; `look` is called on the thread.
    """

    def __init__(self, on_hang: Callable[[], None]) -> None:
        super().__init__()
        self._on_hang = on_hang
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen: tuple[sqlite3.Connection, int] | None = None

    def hang(self, bell: Bell) -> None:
        """From now on this bell rings too."""
        super().hang(bell)
        self._loop = asyncio.get_running_loop()
        self._on_hang()

    def look(self, connection: sqlite3.Connection) -> None:
        """Ring all if another connection has written since the last look.

        The version does not change by what `connection` itself commits. A new connection counts as a change:
        anything may have been missed before it was made.
        """
        ((version,),) = connection.execute("PRAGMA data_version").fetchall()
        seen, self._seen = self._seen, (connection, version)
        if seen is not None and seen != self._seen and self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed: nobody is left to be woken.
                self._loop.call_soon_threadsafe(self.ring_all)
