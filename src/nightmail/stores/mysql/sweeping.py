"""Deletes old rows, on the store's own connection: found, locked and deleted in three round trips."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from nightmail.clock import Clock
from nightmail.records import DeadFilter, Swept
from nightmail.stores.mysql.dialect import Dialect
from nightmail.stores.mysql.inspecting import chosen
from nightmail.stores.mysql.requests import SERVER, Answer, Server
from nightmail.stores.mysql.text import Queries, Sql, several
from nightmail.stores.mysql.timers import in_hexadecimal
from nightmail.stores.mysql.times import microseconds, now
from nightmail.stores.sql.verbs import Verb


class Sweeping:
    """The verbs purge and sweep."""

    def __init__(self, sql: Queries, clock: Clock) -> None:
        self._sql = sql
        self._clock = clock

    def purge(self, which: DeadFilter, *, limit: int) -> Verb[int]:
        """See `Inspection.purge`."""
        server: Server = yield SERVER
        moment = now(self._clock)
        found: Answer = yield self._sql(
            "purgeable", **chosen(self._sql, which, moment), now=moment, limit=max(limit, 0)
        )
        if not found.rows:
            return 0
        lock = self._lock(server.dialect, "lock_letters", _ids(found.rows), moment)
        _, locked = yield "begin", lock
        yield *self._removal(server.dialect, "remove_letters", locked.rows), "commit"
        return len(locked.rows)

    def sweep(self, *, older_than: timedelta, limit: int) -> Verb[Swept]:
        """See `Inspection.sweep`."""
        server: Server = yield SERVER
        dialect, moment = server.dialect, now(self._clock)
        age, most = microseconds(older_than), max(limit, 0)
        delivered, dead = yield (
            self._sql("old_deliveries", now=moment, older_than=age, limit=most),
            self._sql("old_letters", now=moment, older_than=age, limit=most),
        )
        _, delivered, dead, windows = yield (
            "begin",
            self._lock(dialect, "lock_deliveries", _ids(delivered.rows), moment),
            self._lock(dialect, "lock_letters", _ids(dead.rows), moment),
            dialect.skips_locked + self._sql("lock_ended_windows", now=moment, limit=most),
        )
        yield (
            *self._removal(dialect, "remove_deliveries", delivered.rows),
            *self._removal(dialect, "remove_letters", dead.rows),
            *self._closing(dialect, windows.rows),
            "commit",
        )
        return Swept(len(delivered.rows), len(dead.rows), len(windows.rows))

    def _lock(self, dialect: Dialect, name: str, ids: list[int], moment: Sql) -> str:
        return dialect.skips_locked + self._sql(name, ids=several(ids), now=moment)

    def _removal(self, dialect: Dialect, name: str, locked: Sequence[Sequence[Any]]) -> list[Sql]:
        return [self._sql(name, ids=json.dumps(_ids(locked)), begun=dialect.begun)] if locked else []

    def _closing(self, dialect: Dialect, locked: Sequence[Sequence[Any]]) -> list[Sql]:
        timers = in_hexadecimal((queue, timer_id) for queue, timer_id in locked)
        return [self._sql("close_windows", timers=timers, begun=dialect.begun)] if locked else []


def _ids(found: Sequence[Sequence[Any]]) -> list[int]:
    return sorted(row[0] for row in found)
