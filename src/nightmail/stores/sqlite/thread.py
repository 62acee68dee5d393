"""A thread that owns a connection.

A transaction is one piece of work, run on the thread from its first statement to its commit. Whoever waits for it
waits on the event loop; cancelling that wait drops the answer and never leaves a transaction half done.

    coroutine ──job──▶ look, without the lock ──found the answer──▶ answer
                                 │ something to write
                                 ▼
                       wait for the lock ──▶ BEGIN · all who wait · COMMIT ──▶ answers

Everybody who waits goes into one transaction, each in a savepoint of its own: a lasting commit takes the disk
milliseconds, and sixteen publishers should not queue up for sixteen of them. While somebody else holds the lock, the
thread goes on answering those who only look.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.stores.sqlite.connect import PATIENCE_SECONDS
from nightmail.stores.sqlite.errors import commit_failed, in_doubt, is_busy, translated
from nightmail.stores.sqlite.jobs import Answer, Answers, Done, Failed, Job, Look, Stop, Work, Write, patience
from nightmail.stores.sqlite.line import Line
from nightmail.stores.sqlite.watch import WATCH_SECONDS, WatchedTower

T = TypeVar("T")

_MOST_TOGETHER: Final = 256
"""How many jobs share a transaction at most, so that others get the lock in between."""


class ConnectionThread:
    """Carries out work on a connection of its own, for coroutines on any event loop."""

    def __init__(
        self, name: str, connect: Callable[[], sqlite3.Connection], tower: WatchedTower | None = None
    ) -> None:
        self._connect = connect
        self._tower = tower
        self._jobs: SimpleQueue[Job | Stop] = SimpleQueue()
        self._process = os.getpid()
        self._open = True
        self._thread = threading.Thread(target=self._serve, name=f"nightmail-sqlite-{name}", daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """Whether it takes work. A forked child has the object but not the thread."""
        return self._open and self._process == os.getpid()

    async def read(self, work: Work[T]) -> T:
        """Run work that only reads."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(Look(work=work, future=future, deadline=patience()))
        return await future

    async def write(
        self,
        work: Work[T],
        *,
        look: Work[T | None] | None = None,
        then: Callable[[T], None] | None = None,
        when_locked_out: Callable[[], T] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
        lasting: bool = True,
    ) -> T:
        """Run work in a transaction and commit it; see `Write`."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(
            Write(
                work=work,
                future=future,
                deadline=patience(patience_seconds),
                look=look,
                then=then,
                when_locked_out=when_locked_out,
                lasting=lasting,
            )
        )
        return await future

    def soon(self, work: Work[None]) -> None:
        """Have this read done before whatever is asked for later; nobody waits for it."""
        if self.usable:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # Nobody will ask what became of it.
            future.cancel()
            self._jobs.put(Look(work=work, future=future, deadline=patience()))

    async def stop(self) -> None:
        """Finish what was asked for, close the connection and end the thread."""
        if not self.usable:
            return
        self._open = False
        stop = Stop(asyncio.get_running_loop().create_future())
        self._jobs.put(stop)
        await stop.future
        self._thread.join()

    def _submit(self, job: Job) -> None:
        if self._process != os.getpid():
            raise StoreUnavailable(
                "this store was opened before the process forked: open it again in the child, or open it after the fork"
            )
        if not self._open:
            raise StoreUnavailable("this store is closed: open it first")
        self._jobs.put(job)

    # ------------------------------------------------------------------------------------- on the thread

    def _serve(self) -> None:
        # Held by nothing but this frame: a forked child must never close a connection of its parent.
        line = Line(self._connect)
        waiting: list[Write[Any]] = []
        stop: Stop | None = None
        while stop is None or waiting:
            for job in self._arrivals(wait=not waiting):
                if isinstance(job, Stop):
                    stop = job
                elif isinstance(job, Write) and (job.look is None or not self._answered(line, job, job.look)):
                    waiting.append(job)
                elif isinstance(job, Look):
                    self._answered(line, job, job.work)
            waiting = _write(line, waiting[:_MOST_TOGETHER]) + waiting[_MOST_TOGETHER:]
            self._watch(line)
        line.drop()
        answers = Answers()
        answers.add(stop, Done(None))
        answers.hand_over()

    def _arrivals(self, *, wait: bool) -> Iterator[Job | Stop]:
        """What was asked for since. Waits for something, but not past the next look at what others write."""
        watching = self._tower is not None and not self._tower.empty
        try:
            yield self._jobs.get(block=wait, timeout=WATCH_SECONDS if watching else None)
            while True:
                yield self._jobs.get_nowait()
        except Empty:
            return

    def _answered(self, line: Line, job: Job, look: Work[Any]) -> bool:
        """Look; whether that was all."""
        if job.future.cancelled() and isinstance(job, Write):
            return True
        answer: Answer
        try:
            result = look(line.connection())
            if result is None and isinstance(job, Write):
                return False
            answer = Done(result)
        except sqlite3.Error as error:
            if is_busy(error) and time.monotonic() < job.deadline:
                # Not the write lock, which readers never need: the log is being recovered or removed.
                self._jobs.put(job)
                return True
            if in_doubt(error):
                line.drop()
            answer = Failed(translated(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's, and the thread lives on
            answer = Failed(error)
        answers = Answers()
        answers.add(job, answer)
        answers.hand_over()
        return True

    def _watch(self, line: Line) -> None:
        if self._tower is not None and not self._tower.empty:
            try:
                self._tower.look(line.connection())
            except sqlite3.Error as error:
                if in_doubt(error):
                    line.drop()


def _write(line: Line, waiting: list[Write[Any]]) -> list[Write[Any]]:
    """Carry out these jobs in one transaction; those that must go on waiting for the lock."""
    # Whoever was cancelled before it began gets nothing: a claim would be leased to nobody.
    group = [job for job in waiting if not job.future.cancelled()]
    if not group:
        return []
    answers = Answers()
    try:
        connection = line.begin(lasting=any(job.lasting for job in group))
    except sqlite3.Error as error:
        if is_busy(error):
            return _locked_out(group)
        line.drop()
        _refuse(group, error)
        return []
    done = [(job, _in_savepoint(connection, job.work)) for job in group]
    undone = None
    try:
        if connection.in_transaction:
            connection.execute("COMMIT")
        else:
            # An error grave enough makes SQLite roll everything back, savepoints and all.
            undone = StoreUnavailable("SQLite rolled the transaction back.")
    except sqlite3.Error as error:
        line.drop()
        undone = commit_failed(error)
    for job, answer in done:
        ...
