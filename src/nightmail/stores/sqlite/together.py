"""Writing what several callers asked for in one transaction, each in a savepoint of its own."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from nightmail.errors import StoreUnavailable
from nightmail.stores.sqlite.errors import commit_failed, is_busy, translated
from nightmail.stores.sqlite.jobs import Answer, Done, Failed, Work, Write, hand_over
from nightmail.stores.sqlite.line import Line


def write_together(line: Line, waiting: Sequence[Write[Any]]) -> list[Write[Any]]:
    """Carry out these jobs and answer them; those that must go on waiting for the lock."""
    # Whoever was cancelled before it began gets nothing: a claim would be leased to nobody.
    group = [job for job in waiting if not job.future.cancelled()]
    if not group:
        return []
    try:
        answers = write(line, [job.work for job in group], lasting=any(job.lasting for job in group))
    except sqlite3.Error as error:
        if is_busy(error):
            return _locked_out(group)
        hand_over((job, Failed(translated(error))) for job in group)
    else:
        hand_over(zip(group, answers, strict=True))
    return []


def write(line: Line, works: Sequence[Work[Any]], *, lasting: bool) -> list[Answer]:
    """Do all this in one transaction and commit it; what became of each. Raises when it cannot even begin."""
    try:
        connection = line.begin(lasting=lasting)
    except sqlite3.Error as error:
        if not is_busy(error):
            line.drop()
        raise
    answers = [_in_savepoint(connection, work) for work in works]
    undone = _commit(line, connection)
    if undone is None:
        return answers
    return [answer if isinstance(answer, Failed) else Failed(undone) for answer in answers]


def _in_savepoint(connection: sqlite3.Connection, work: Work[Any]) -> Answer:
    """Do this work, or nothing of it."""
    try:
        connection.execute("SAVEPOINT work")
        result = work(connection)
        connection.execute("RELEASE work")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's, and the neighbours go on
        # An error that is grave enough has rolled everything back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK TO work")
            connection.execute("RELEASE work")
        return Failed(translated(error) if isinstance(error, sqlite3.Error) else error)
    return Done(result)


def _commit(line: Line, connection: sqlite3.Connection) -> Exception | None:
    """Commit; or, if nothing was written after all, why."""
    if not connection.in_transaction:
        line.drop()
        return StoreUnavailable("SQLite rolled the transaction back: something in it failed. Try again.")
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        line.drop()
        return commit_failed(error)
    return None


def _locked_out(group: Sequence[Write[Any]]) -> list[Write[Any]]:
    """Answer those whose patience has ended; the others."""
    now = time.monotonic()
    hand_over((job, _without_lock(job)) for job in group if job.deadline <= now)
    return [job for job in group if job.deadline > now]


def _without_lock(job: Write[Any]) -> Answer:
    if job.when_locked_out is not None:
        return Done(job.when_locked_out())
    return Failed(StoreUnavailable("another connection kept the database locked for too long. Try again."))
