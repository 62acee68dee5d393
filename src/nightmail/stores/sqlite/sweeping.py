"""Deleting dead letters that an operator selects, and whatever is old."""

from __future__ import annotations

from datetime import timedelta

from nightmail.records import DeadFilter, Swept
from nightmail.stores.sql.verbs import Ask, Verb
from nightmail.stores.sqlite.inspecting import conditions, narrowed
from nightmail.stores.sqlite.queries import Queries
from nightmail.stores.sqlite.times import END_OF_TIME, StoreTime, before


class Sweeping:
    """The verbs `purge` and `sweep`. Neither touches messages, nor dead letters that are leased."""

    def __init__(self, sql: Queries, time: StoreTime) -> None:
        self._sql = sql
        self._time = time

    def purge(self, which: DeadFilter, *, limit: int) -> Verb[int]:
        """Delete some of these dead letters, oldest first. Returns how many."""
        now = self._time.now()
        wanted = conditions(which, now) | {"now": now, "limit": max(limit, 0)}
        if wanted["died_before"] is None:
            wanted["died_before"] = END_OF_TIME + 1
        return (yield from self._deleted(self._sql(narrowed("purge", which), **wanted)))

    def is_clean(self, older_than: timedelta) -> Verb[Swept | None]:
        """An empty result if there is nothing to sweep, else `None`: a sweep without work must not block writers."""
        now = self._time.now()
        ((found,),) = yield self._sql("sweepable", before=before(now, older_than), now=now)
        return None if found else Swept()

    def sweep(self, *, older_than: timedelta, limit: int) -> Verb[Swept]:
        """Delete some old delivered messages, old dead letters and ended windows. Returns how many of each."""
        now = self._time.now()
        old = {"before": before(now, older_than), "limit": max(limit, 0)}
        return Swept(
            delivered=(yield from self._deleted(self._sql("sweep_delivered", **old))),
            dead=(yield from self._deleted(self._sql("sweep_dead", now=now, **old))),
            dedup=(yield from self._deleted(self._sql("sweep_dedup", now=now, limit=max(limit, 0)))),
        )

    def _deleted(self, ask: Ask) -> Verb[int]:
        yield ask
        ((count,),) = yield self._sql("deleted")
        return int(count)
