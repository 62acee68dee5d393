"""Runs the writes of several callers in one transaction.

First without savepoints: nearly always all of them succeed. If one fails, everything is rolled back and done again,
each in its own savepoint, so that one caller's failure does not fail another. Savepoints are costly: next to a busy
event loop a thread may wait for the GIL at every statement.
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
from nightmail.stores.sqlite.link import Link


def write_together(link: Link, waiting: Sequence[Write[Any]]) -> list[Write[Any]]:
    """Run these jobs and answer them. Returns those that must keep waiting for the lock."""
    group = [job for job in waiting if not job.future.cancelled()]
    if not group:
        return []
    begun: list[Write[Any]] = []

    def works() -> Iterator[Work[Any]]:
        for job in group:
            # A job cancelled while it waited for the lock is skipped: a claim would take leases without a holder.
            if not job.future.cancelled():
                begun.append(job)
                yield job.work

    try:
        answers = write(
            link,
            works(),
            lasting=any(job.lasting for job in group),
            urgent=any(job.urgent for job in group),
        )
    except Exception as error:  # noqa: BLE001 - the callers get it, and the thread lives on
        if is_busy(error):
            return _locked_out(group, link.file)
        if is_refusal(error) and len(group) > 1:
            # One was refused in a way that rolls back the whole transaction: run each in its own.
            return [left for job in group for left in write_together(link, [job])]
        hand_over((job, Failed(translated(error, link.file))) for job in group)
    else:
        hand_over(zip(begun, answers, strict=True))
    return []


def write(link: Link, works: Iterable[Work[Any]], *, lasting: bool, urgent: bool) -> list[Answer]:
    """Do all this in one transaction and commit it. Returns the answer to each. If it raises, nothing was written."""
    try:
        connection = link.begin(lasting=lasting, urgent=urgent)
        works = list(works)
        answers = _all_at_once(connection, works)
        if answers is None:
            connection = link.begin(lasting=lasting, urgent=urgent)
            answers = [in_savepoint(connection, work, link.file) for work in works]
    except Exception as error:
        if not is_busy(error):
            link.drop()
        raise
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        link.drop()
        undone = commit_failed(error, link.file)
        return [answer if isinstance(answer, Failed) else Failed(undone) for answer in answers]
    return answers


def _all_at_once(connection: sqlite3.Connection, works: Iterable[Work[Any]]) -> list[Answer] | None:
    """Do all of this, or nothing and return `None`. Raises if the connection is unusable."""
    try:
        return [Succeeded(work(connection)) for work in works]
    except Exception as error:
        # A severe error has already rolled everything back.
        if in_doubt(error) or not connection.in_transaction:
            raise
        connection.execute("ROLLBACK")
        return None


def in_savepoint(connection: sqlite3.Connection, work: Work[Any], file: str = "the database") -> Answer:
    """Do this work, or nothing of it. Raises if the whole transaction cannot continue."""
    connection.execute("SAVEPOINT work")
    try:
        result = work(connection)
    except Exception as error:
        # A severe error has already rolled everything back.
        if in_doubt(error) or not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO work")
        connection.execute("RELEASE work")
        return Failed(translated(error, file))
    connection.execute("RELEASE work")
    return Succeeded(result)


def _locked_out(group: Sequence[Write[Any]], file: str) -> list[Write[Any]]:
    """Answer the jobs whose deadline has passed. Returns the others, and those still owed (see `Write.owed_for`)."""
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
