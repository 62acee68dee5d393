"""Deletes what is over: purged by an operator, or swept because it is old."""

from __future__ import annotations

from datetime import datetime, timedelta
from heapq import nsmallest
from itertools import islice
from operator import attrgetter

from nightmail.records import DeadFilter, Swept
from nightmail.stores.memory.inspecting import is_meant
from nightmail.stores.memory.tables import Tables


def purge(tables: Tables, which: DeadFilter, *, limit: int, now: datetime) -> int:
    """Delete these dead letters, oldest first, except leased ones; returns how many."""
    free = (
        letter for letter in tables.letters() if not letter.held(now) and is_meant(letter.record, which, now)
    )
    purged = nsmallest(limit, free, key=attrgetter("id"))
    for letter in purged:
        tables.queue(letter.queue).letters.remove(letter)
    return len(purged)


def sweep(tables: Tables, *, older_than: timedelta, limit: int, now: datetime) -> Swept:
    """Delete delivered messages and dead letters older than that, and expired dedup windows."""
    return Swept(
        delivered=_sweep_delivered(tables, older_than, limit, now),
        dead=purge(tables, DeadFilter(older_than=older_than), limit=limit, now=now),
        dedup=_sweep_windows(tables, limit, now),
    )


def _sweep_delivered(tables: Tables, older_than: timedelta, limit: int, now: datetime) -> int:
    old = (place for place, record in enumerate(tables.delivered) if now - record.delivered_at > older_than)
    swept = set(islice(old, limit))
    tables.delivered[:] = [record for place, record in enumerate(tables.delivered) if place not in swept]
    return len(swept)


def _sweep_windows(tables: Tables, limit: int, now: datetime) -> int:
    ended = (timer_id for queue in tables.queues.values() for timer_id in queue.windows.take_until(now))
    return sum(1 for _ in islice(ended, limit))
