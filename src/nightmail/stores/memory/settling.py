"""What each outcome does to a message."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.moments import after
from nightmail.stores.memory.rows import Row

_NOTHING: Final = timedelta(0)


def settle(changes: Changes, row: Row, outcome: Outcome, now: datetime, *, keep_delivered: bool) -> None:
    """Write how the delivery of this row ended."""
    match outcome:
        case Done():
            finish(changes, row, now, keep_delivered=keep_delivered)
        case Dead():
            changes.bury(row, outcome, now)
        case Retry() | Postpone() | Release():
            with changes.editing(row, now):
                _bring_back(row, outcome, now)
            changes.ring_if_soon(row, now)


def finish(changes: Changes, row: Row, now: datetime, *, keep_delivered: bool) -> None:
    """Remove a message that was handled."""
    if keep_delivered:
        changes.remember_delivered(row, now)
    changes.remove(row, now)


def _bring_back(row: Row, outcome: Retry | Postpone | Release, now: datetime) -> None:
    match outcome:
        case Retry(delay):
            row.count_attempt()
            row.deliveries = 0
        case Postpone(delay):
            row.start_afresh()
        case Release():
            row.deliveries -= 1
            delay = _NOTHING
    row.end_lease()
    # A superseded message comes back only to be dropped: the sooner the better.
    row.due_at = now if row.superseded else after(now, delay)
