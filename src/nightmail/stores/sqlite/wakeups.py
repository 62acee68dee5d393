"""Notices what others have written: SQLite sends no notifications, but polling is cheap."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nightmail.bell import Bell, Bells
from nightmail.stores.shared.meta import NOTICE_HORIZON
from nightmail.stores.sql.verbs import Verb
from nightmail.stores.sqlite.queries import Queries, carry_out_on
from nightmail.stores.sqlite.times import in_microseconds

WATCH_SECONDS: Final = 0.02
"""How often to poll while a bell hangs: seven microseconds of work each time."""


class WakeupPoller(Bells):
    """The bells of a store. While one hangs, the writer thread polls for what others have written, and rings.

    Bells are hung, taken down and rung on the event loop; `look` is called on the thread.
    """

    def __init__(self, sql: Queries, messages: str, on_first: Callable[[], None]) -> None:
        super().__init__()
        self._sql = sql
        self._messages = messages
        self._on_first = on_first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen: tuple[sqlite3.Connection, int] | None = None
        self._looked_at = 0.0
        self._news = _News(sql, messages)

    def hang(self, bell: Bell) -> None:
        """From now on this bell rings too."""
        self._loop = asyncio.get_running_loop()
        first = self.empty
        super().hang(bell)
        if first:
            self._seen = None
            self._on_first()

    def ring_each(self, *queues: str) -> None:
        """Ring for these queues."""
        for queue in queues:
            self.ring(queue)

    def look(self, connection: sqlite3.Connection) -> None:
        """Ring for what other connections have written since the last look. Calls in quick succession do nothing.

        At the first look after a bell was hung, and after a reconnect, all are rung: anything may have been missed
        since then.
        """
        now = time.monotonic()
        if self._seen is not None and now - self._looked_at < WATCH_SECONDS:
            return
        self._looked_at = now
        ((version,),) = connection.execute("PRAGMA data_version").fetchall()
        before, seen = self._seen, (connection, version)
        if before == seen:
            return
        known = before is not None and before[0] is connection
        if not known:
            self._news = _News(self._sql, self._messages)
        queues = carry_out_on(connection, self._news.read())
        self._seen = seen
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed: nothing is left to wake.
                if known:
                    self._loop.call_soon_threadsafe(self.ring_each, *queues)
                else:
                    self._loop.call_soon_threadsafe(self.ring_all)


class _News:
    """Which queues got something since the last read, our own writes included."""

    def __init__(self, sql: Queries, messages: str) -> None:
        self._sql = sql
        self._messages = messages
        self._newest: int | None = None
        self._rings: dict[str, int] = {}

    def read(self) -> Verb[set[str]]:
        """The queues; none the first time, since everything would be new."""
        # Read before the messages: what is published in between is then new the next time too.
        ((newest,),) = yield self._sql("last_id", messages=self._messages)
        rings: dict[str, int] = dict((yield self._sql("rings")))
        queues: set[str] = set()
        if self._newest is not None:
            horizon = in_microseconds(NOTICE_HORIZON)
            published = yield self._sql("news", newest=self._newest, notice_horizon=horizon)
            queues = {queue for (queue,) in published}
            queues |= {queue for queue, times in rings.items() if times != self._rings.get(queue)}
        self._newest, self._rings = newest, rings
        return queues
