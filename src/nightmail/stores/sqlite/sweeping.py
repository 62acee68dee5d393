"""Clearing away: dead letters that an operator names, and whatever is old."""

from __future__ import annotations

from datetime import timedelta

from nightmail.records import DeadFilter, Swept
from nightmail.stores.sqlite.inspecting import conditions, narrowed
from nightmail.stores.sqlite.moments import END_OF_TIME, StoreTime, before
from nightmail.stores.sqlite.steps import Ask, Queries, Steps


class Sweeping:
    """The steps of `purge` and `sweep`. Neither touches what somebody holds, nor a message."""

    def __init__(self, sql: Queries, time: StoreTime) -> None:
        self._sql = sql
        self._time = time

    def purge(self, which: DeadFilter, *, limit: int) -> Steps[int]:
        """Delete some of these dead letters, oldest first; how many."""
        now = self._time.now()
        wanted = conditions(which, now) | {"now": now, "limit": max(limit, 0)}
        if wanted["died_before"] is None:
            wanted["died_before"] = END_OF_TIME + 1
        return (yield from self._deleted(self._sql(narrowed("purge", which), **wanted)))

    def is_clean(self, older_than: timedelta) -> Steps[Swept | None]:
        """That nothing is to be swept, if nothing is: whoever sweeps in vain must stand in nobody's way."""
        now = self._time.now()
        ((found,),) = yield self._sql("sweepable", before=before(now, older_than), now=now)
        return None if found else Swept()

    def sweep(self, *, older_than: timedelta, limit: int) -> Steps[Swept]:
        """Delete some of what was delivered or died longer ago, and of the windows that have ended; how many."""
        now = self._time.now()
        old = {"before": before(now, older_than), "limit": max(limit, 0)}
        return Swept(
            delivered=(yield from self._deleted(self._sql("sweep_delivered", **old))),
            dead=(yield from self._deleted(self._sql("sweep_dead", now=now, **old))),
            dedup=(yield from self._deleted(self._sql("sweep_dedup", now=now, limit=max(limit, 0)))),
        )

    def _deleted(self, ask: Ask) -> Steps[int]:
        yield ask
        ((count,),) = yield self._sql("deleted")
        return int(count)
