"""The one connection of a thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# A forked child gets copies of its parent's connections and must not close them, not even by forgetting them: it would
# touch files that its parent is using. So nobody forgets a connection that is open.
_open: Final[set[sqlite3.Connection]] = set()


class Line:
    """A connection that is made when it is first needed, and made anew after it was dropped."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._lasting = True

    def connection(self) -> sqlite3.Connection:
        """The connection."""
        if self._connection is None:
            self._connection = self._connect()
            self._lasting = True
            _open.add(self._connection)
        return self._connection

    def begin(self, *, lasting: bool) -> sqlite3.Connection:
        """Take the write lock. Unless it is to be lasting, the commit does not wait for the disk.

        A commit that does not wait may be lost in a power cut, together with everything later that did not wait
        either; whatever comes after it and does wait makes it lasting too.
        """
        connection = self.connection()
        if lasting is not self._lasting:
            connection.execute(f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}")
            self._lasting = lasting
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def drop(self) -> None:
        """Close the connection, and with it whatever it had begun."""
        if self._connection is not None:
            _open.discard(self._connection)
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
