"""Writing what several callers asked for in one transaction.

First without precautions: nearly always all of it succeeds. If something fails everything is undone and done again,
each in a savepoint of its own, so that one caller's failure is not another's. Savepoints cost: a thread that shares its
interpreter with a busy event loop may wait for it at every statement.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nightmail.stores.sqlite.errors import (
    commit_failed,
    in_doubt,
    is_busy,
    is_refusal,
    locked_for_too_long,
    translated,
)
from nightmail.stores.sqlite.jobs import Answer, Failed, Succeeded, Work, Write, hand_over
from nightmail.stores.sqlite.line import Line


def write_together(line: Line, waiting: Sequence[Write[Any]]) -> list[Write[Any]]:
    """Carry out these jobs and answer them; those that must go on waiting for the lock."""
    group = [job for job in waiting if not job.future.cancelled()]
    if not group:
        return []
    begun: list[Write[Any]] = []

    def works() -> Iterator[Work[Any]]:
        for job in group:
            # Whoever was cancelled while it waited for the lock gets nothing: a claim would be leased to nobody.
            if not job.future.cancelled():
                begun.append(job)
                yield job.work

    try:
        answers = write(
            line,
            works(),
            lasting=any(job.lasting for job in group),
            urgent=any(job.urgent for job in group),
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the callers are told, and the thread lives on
        if is_busy(error):
            return _locked_out(group, line.file)
        if is_refusal(error) and len(group) > 1:
            # One of them is refused in a way that undoes the whole transaction: each in one of its own then.
            return [left for job in group for left in write_together(line, [job])]
        hand_over((job, Failed(translated(error, line.file))) for job in group)
    else:
        hand_over(zip(begun, answers, strict=True))
    return []


def write(line: Line, works: Iterable[Work[Any]], *, lasting: bool, urgent: bool) -> list[Answer]:
    """Do all this in one transaction and commit it; what became of each. When it raises, nothing was written."""
    try:
        connection = line.begin(lasting=lasting, urgent=urgent)
        works = list(works)
        answers = _all_at_once(connection, works)
        if answers is None:
            connection = line.begin(lasting=lasting, urgent=urgent)
            answers = [in_savepoint(connection, work, line.file) for work in works]
    except Exception as error:
        if not is_busy(error):
            line.drop()
        raise
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        line.drop()
        undone = commit_failed(error, line.file)
        return [answer if isinstance(answer, Failed) else Failed(undone) for answer in answers]
    return answers


def _all_at_once(connection: sqlite3.Connection, works: Iterable[Work[Any]]) -> list[Answer] | None:
    """Do all of this; or nothing, and `None`. Raises when the connection cannot go on."""
    try:
        return [Succeeded(work(connection)) for work in works]
    except Exception as error:
        # An error that is grave enough has rolled everything back already.
        if in_doubt(error) or not connection.in_transaction:
            raise
        connection.execute("ROLLBACK")
        return None


def in_savepoint(connection: sqlite3.Connection, work: Work[Any], file: str = "the database") -> Answer:
    """Do this work, or nothing of it. Raises when the transaction as a whole cannot go on."""
    connection.execute("SAVEPOINT work")
    try:
        result = work(connection)
    except Exception as error:
        # An error that is grave enough has rolled everything back already.
        if in_doubt(error) or not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO work")
        connection.execute("RELEASE work")
        return Failed(translated(error, file))
    connection.execute("RELEASE work")
    return Succeeded(result)


def _locked_out(group: Sequence[Write[Any]], file: str) -> list[Write[Any]]:
    """Answer those whose patience has ended; the others, and those that are owed all the same."""
    now = time.monotonic()
    late = [job for job in group if job.deadline <= now]
    hand_over((job, _without_lock(job, file)) for job in late)
    for job in late:
        job.deadline, job.owed_for = now + job.owed_for, 0.0
    return [job for job in group if job.deadline > now]


def _without_lock(job: Write[Any], file: str) -> Answer:
    if job.when_locked_out is not None:
        return Succeeded(job.when_locked_out())
    return Failed(locked_for_too_long(file))
