"""What each outcome does to a message, and to a dead letter."""

from __future__ import annotations

from datetime import datetime, timedelta

from nightmail.describing import last_error
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.stores.memory.changes import Changes
from nightmail.stores.memory.letters import Letter
from nightmail.stores.memory.rows import Row
from nightmail.stores.memory.times import after


def settle(changes: Changes, row: Row, outcome: Outcome, now: datetime, *, keep_delivered: bool) -> None:
    """Write the outcome of this row's delivery."""
    match outcome:
        case Done():
            finish(changes, row, now, keep_delivered=keep_delivered)
        case Dead():
            changes.bury(row, outcome, now)
        case Retry() | Postpone() | Release():
            with changes.editing(row):
                delay = _bring_back(row, outcome)
                if isinstance(outcome, Retry):
                    row.last_error = last_error(outcome)
                if delay is not None:
                    # A superseded message is redelivered only to be dropped: the sooner the better.
                    row.due_at = now if row.superseded else after(now, delay)
            changes.ring_if_soon(row.queue, row.due_at, now)


def settle_letter(changes: Changes, letter: Letter, outcome: Outcome, now: datetime) -> None:
    """Write the outcome of this dead letter's delivery."""
    letters = changes.queue(letter.queue).letters
    match outcome:
        case Done():
            letters.remove(letter)
        case Dead():
            letters.give_up(letter)
        case Retry() | Postpone() | Release():
            with letters.editing(letter):
                delay = _bring_back(letter, outcome)
                if delay is not None:
                    letter.due_at = after(now, delay)
            changes.ring_if_soon(letter.queue, letter.due_at or now, now)


def finish(changes: Changes, row: Row, now: datetime, *, keep_delivered: bool) -> None:
    """Remove a message that was handled."""
    if keep_delivered:
        changes.remember_delivered(row, now)
    changes.remove(row)


def _bring_back(leased: Row | Letter, outcome: Retry | Postpone | Release) -> timedelta | None:
    """Count as the outcome says and end the lease; returns the delay until due, `None` to keep the due time."""
    delay: timedelta | None
    match outcome:
        case Retry(delay):
            leased.count_attempt()
            leased.deliveries = 0
        case Postpone(delay):
            leased.start_afresh()
        case Release():
            leased.deliveries -= 1
            delay = None
    leased.end_lease()
    return delay
