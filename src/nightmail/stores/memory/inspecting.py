"""Operator queries: pending messages, dead letters, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from heapq import nlargest, nsmallest

from nightmail.records import DeadFilter, DeadLetter, DeadSummary, PendingMessage, QueueStats
from nightmail.stores.memory.letters import Letter
from nightmail.stores.memory.rows import Row
from nightmail.stores.shared.dead_groups import DeadGroups


def pending(
    rows: Iterable[Row],
    *,
    timer_id: str | None,
    due_before: datetime | None,
    limit: int,
    cursor: tuple[datetime, int] | None,
    now: datetime,
) -> list[PendingMessage]:
    """Waiting messages, by due time."""
    waiting = (
        row
        for row in rows
        if not row.running(now)
        and not row.superseded
        and (timer_id is None or row.timer_key == timer_id)
        and (due_before is None or row.due_at < due_before)
        and (cursor is None or (row.due_at, row.id) > cursor)
    )
    return [row.pending() for row in nsmallest(limit, waiting, key=lambda row: (row.due_at, row.id))]


def letters(
    dead: Iterable[Letter], which: DeadFilter, *, limit: int, cursor: int | None, now: datetime
) -> list[DeadLetter]:
    """Dead letters that match every given condition, newest first."""
    found = (
        letter.record
        for letter in dead
        if (cursor is None or letter.id < cursor) and is_meant(letter.record, which, now)
    )
    return nlargest(limit, found, key=lambda letter: letter.id)


def summary(dead: Iterable[Letter], which: DeadFilter, *, limit: int, now: datetime) -> DeadSummary:
    """Dead letters that match every given condition, counted by group."""
    groups = DeadGroups(lambda died_at: died_at)
    for letter in (each.record for each in dead):
        if is_meant(letter, which, now):
            died = letter.died_at
            groups.add(letter.queue, letter.reason, letter.error, 1, died, died, letter.id)
    return groups.summary(limit)


def is_meant(letter: DeadLetter, which: DeadFilter, now: datetime) -> bool:
    """Whether this dead letter matches every given condition."""
    return (
        (which.queue is None or letter.queue == which.queue)
        and (which.reason is None or letter.reason == which.reason)
        and (which.error is None or (letter.error is not None and which.error in letter.error))
        and (which.older_than is None or now - letter.died_at > which.older_than)
        and (which.ids is None or letter.id in which.ids)
    )


def stats(rows: Iterable[Row], *, dead: int, now: datetime) -> QueueStats:
    """Counts of a queue with these rows and this many dead letters."""
    # Keyed by field name.
    kinds: Counter[str] = Counter()
    oldest = now
    for row in rows:
        kind = _kind(row, now)
        kinds[kind] += 1
        if kind == "ready":
            oldest = min(oldest, row.due_at)
    return QueueStats(dead=dead, oldest_due_age=now - oldest if kinds["ready"] else None, **kinds)


def _kind(row: Row, now: datetime) -> str:
    if row.superseded:
        return "superseded"
    if row.running(now):
        return "running"
    return "scheduled" if row.due_at > now else "ready"
