"""Notices what others have written: SQLite sends no notifications, but polling is cheap.

Where the system tells that the file is written to, polling rests while it is not. That is no wake-up in itself: it
comes before the commit can be seen.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nightmail.bell import Bell, Bells
from nightmail.stores.shared.meta import NOTICE_HORIZON
from nightmail.stores.sql.verbs import Verb
from nightmail.stores.sqlite import file_events
from nightmail.stores.sqlite.file_events import FileEvents
from nightmail.stores.sqlite.queries import Queries, carry_out_on
from nightmail.stores.sqlite.times import in_microseconds

WATCH_SECONDS: Final = 0.02
"""How often to poll while a bell hangs: seven microseconds of work each time, and a hundred to wake up for it."""
QUIET_WATCH_SECONDS: Final = 0.25
"""How often while the file is not written to. As often the system is asked whether it is."""
BUSY_SECONDS: Final = 0.5
"""How long after a write the file counts as being written to: a commit can be seen when its flush is done."""


class WakeupPoller(Bells):
    """The bells of a store. While one hangs, the writer thread polls for what others have written, and rings.

    Bells are hung, taken down and rung on the event loop; `look` and `watch_seconds` are for the thread.
    """

    def __init__(self, file: str, sql: Queries, messages: str, look_soon: Callable[[], None]) -> None:
        """`look_soon` has the thread look, also if it waits for its next one."""
        super().__init__()
        self._file = file
        self._sql = sql
        self._messages = messages
        self._look_soon = look_soon
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen: tuple[sqlite3.Connection, int] | None = None
        self._looked_at = 0.0
        self._events: FileEvents | None = None
        self._busy_until = 0.0
        self._news = _News(sql, messages)

    def hang(self, bell: Bell) -> None:
        """From now on this bell rings too."""
        self._loop = asyncio.get_running_loop()
        first = self.empty
        super().hang(bell)
        if first:
            self._seen = None
            self._look_soon()

    def take_down(self, bell: Bell) -> None:
        """This bell rings no more."""
        super().take_down(bell)
        if self.empty:
            self.rest()

    def rest(self) -> None:
        """Do not ask any more whether the file is written to."""
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def ring_each(self, *queues: str) -> None:
        """Ring for these queues."""
        for queue in queues:
            self.ring(queue)

    @property
    def watch_seconds(self) -> float:
        """How long until the next look."""
        quiet = self._events is not None and time.monotonic() > self._busy_until
        return QUIET_WATCH_SECONDS if quiet else WATCH_SECONDS

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
                    self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        """The thread watches a new connection: with the last one its log may have been removed, and made again."""
        self.rest()
        if not self.empty:
            self._busy_until = time.monotonic() + BUSY_SECONDS
            # SQLite puts the log beside the file itself, not beside a link to it.
            log = f"{os.path.realpath(self._file)}-wal"
            self._events = file_events.watch(log, self._written, rest_seconds=QUIET_WATCH_SECONDS)
        self.ring_all()

    def _written(self) -> None:
        quiet = time.monotonic() > self._busy_until
        self._busy_until = time.monotonic() + BUSY_SECONDS
        if quiet:
            self._look_soon()


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
