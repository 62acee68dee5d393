"""The one connection of a thread."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nightmail.stores.sqlite.errors import is_busy

# A forked child gets copies of its parent's connections and must not close them, not even by garbage collection: it
# would touch files that its parent is using. So every open connection stays referenced here.
_open: Final[set[sqlite3.Connection]] = set()

SLICE_SECONDS: Final = 0.05
"""How long to wait for the lock at a time: in between, a thread answers reads."""
_URGENT_PAUSE: Final = 0.0005
"""SQLite's own wait sleeps for up to 20 ms. Polling this often gets the lock between two commits of others."""
_FORGOTTEN_AFTER: Final = 1.0
"""Seconds without asking for the lock, after which it is unknown whether others had it meanwhile."""
A_CHANCE: Final = 0.5
"""Seconds. So soon after the lock was free again, every keeper has asked for it."""
LATELY: Final = 2.0
"""Seconds over which waits for the lock are summed up."""


class Link:
    """A connection that opens when first needed, and again after it was dropped."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], file: str = "the database") -> None:
        self.file = file
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._lasting = True
        self._refused_since = 0.0
        self._refused_at = 0.0
        self.locked_out = 0.0
        """For how many seconds others had the lock before the last `begin` got it."""
        self._lock_out = 0.0
        self._freed_at = 0.0
        """The same for the longest lock-out of late, and when the lock was free again."""
        self._waits: deque[tuple[float, float]] = deque()
        """When each wait for the lock ended, and its seconds."""

    def connection(self) -> sqlite3.Connection:
        """The connection."""
        if self._connection is None:
            self._connection = self._connect()
            self._lasting = True
            _open.add(self._connection)
        return self._connection

    def begin(self, *, lasting: bool, urgent: bool = False) -> sqlite3.Connection:
        """Take the write lock. Unless `lasting`, the commit does not wait for the disk.

        An `urgent` call polls for the lock far more often than others do, and so gets it before them.

        A commit that does not wait may be lost in a power cut, together with all later ones that did not wait either;
        the next commit that waits makes it durable too.
        """
        connection = self.connection()
        if lasting is not self._lasting:
            connection.execute(f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}")
            self._lasting = lasting
        asked_at = time.monotonic()
        if asked_at - self._refused_at > _FORGOTTEN_AFTER:
            self._refused_since = asked_at
        try:
            if urgent:
                _begin_in_the_first_gap(connection, asked_at + SLICE_SECONDS)
            else:
                connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if is_busy(error):
                self._refused_at = time.monotonic()
            raise
        finally:
            now = time.monotonic()
            self._waits.append((now, now - asked_at))
            while self._waits[0][0] < now - LATELY:
                self._waits.popleft()
        self.locked_out = (
            self._refused_at - self._refused_since if self._refused_at > self._refused_since else 0.0
        )
        self._refused_at = 0.0
        if now - self._freed_at >= A_CHANCE or self.locked_out > self._lock_out:
            self._lock_out, self._freed_at = self.locked_out, now
        return connection

    def locked_out_for(self, lease: float) -> float:
        """`locked_out`, as it concerns leases of so many seconds.

        Jobs that come a moment after a lock-out are in the next transaction, while keepers of other processes still ask
        for the lock: for them it is as if it had just ended. Only if it took half a lease: by less, none has run out.
        """
        if self._lock_out >= lease / 2 and time.monotonic() - self._freed_at < A_CHANCE:
            return self._lock_out
        return self.locked_out

    @property
    def waited_lately(self) -> float:
        """For how many of the last `LATELY` seconds this connection waited for the lock."""
        return sum(seconds for _, seconds in self._waits)

    def interrupt(self) -> None:
        """Make the running statement fail. The only method that another thread may call."""
        connection = self._connection
        if connection is not None:
            with suppress(sqlite3.Error):  # Closed meanwhile.
                connection.interrupt()

    def drop(self) -> None:
        """Close the connection, which rolls back its transaction."""
        if self._connection is not None:
            _open.discard(self._connection)
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _begin_in_the_first_gap(connection: sqlite3.Connection, deadline: float) -> None:
    """Take the write lock as soon as it is free."""
    ((timeout,),) = connection.execute("PRAGMA busy_timeout").fetchall()
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(_URGENT_PAUSE)
            else:
                return
    finally:
        connection.execute(f"PRAGMA busy_timeout = {timeout}")
