"""A thread that owns a connection.

A transaction runs on the thread from its first statement to its commit. Its callers wait on the event loop; cancelling
that wait drops the answer and never leaves a transaction half done.

    coroutine ──job──▶ look, without the lock ──found the answer──▶ answer
                                 │ something to write
                                 ▼
                       wait for the lock ──▶ BEGIN · all waiting jobs · COMMIT ──▶ answers

All waiting jobs share one transaction: a durable commit takes the disk milliseconds, and sixteen publishers should not
queue up for sixteen of them. While another connection holds the lock, the thread keeps answering reads.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from nightmail.errors import StoreUnavailable
from nightmail.stores.shared.opening import Origin
from nightmail.stores.sqlite.connect import PATIENCE_SECONDS
from nightmail.stores.sqlite.errors import in_doubt, is_busy, translated
from nightmail.stores.sqlite.group_commit import write_together
from nightmail.stores.sqlite.jobs import (
    Answer,
    Errand,
    Failed,
    Job,
    Look,
    Stop,
    Succeeded,
    Work,
    Write,
    hand_over,
)
from nightmail.stores.sqlite.link import SLICE_SECONDS, Link
from nightmail.stores.sqlite.wakeups import WakeupPoller

T = TypeVar("T")
logger = logging.getLogger(__name__)

_MOST_TOGETHER: Final = 256
"""The most jobs in one transaction, so that others get the lock in between."""
STOP_SECONDS: Final = 2.0
"""How long a stopping thread may continue with earlier jobs."""
_INTERRUPTED_SECONDS: Final = 0.5
"""How long a statement may take to notice that it was interrupted."""


class ConnectionThread:
    """Runs work on its own connection, for coroutines on any event loop."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        tower: WakeupPoller | None = None,
        *,
        file: str = "the database",
    ) -> None:
        self._link = Link(connect, file)
        self._tower = tower
        self._jobs: SimpleQueue[Job | Errand | Stop] = SimpleQueue()
        self._origin = Origin()
        self._open = True
        self._thread = threading.Thread(target=self._serve, name=f"nightmail-sqlite-{name}", daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """Whether it accepts work. A forked child has the object but not the thread."""
        return self._open and self._origin.is_here

    def locked_out_for(self, lease: timedelta) -> float:
        """For how many seconds others had the lock before the current transaction got it, or shortly before one of this
        thread did, as it concerns such leases. For use by its work.
        """
        return self._link.locked_out_for(lease.total_seconds())

    @property
    def waited_lately(self) -> float:
        """For how many of the last seconds this thread waited for the lock. For use by a transaction's work."""
        return self._link.waited_lately

    async def read(self, work: Work[T]) -> T:
        """Run work that only reads."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(Look(work=work, future=future, deadline=time.monotonic() + PATIENCE_SECONDS))
        return await future

    async def write(
        self,
        work: Work[T],
        *,
        look: Work[T | None] | None = None,
        then: Callable[[T], None] | None = None,
        when_locked_out: Callable[[], T] | None = None,
        patience: float = PATIENCE_SECONDS,
        lasting: bool = True,
        urgent: bool = False,
        owed_for: float = 0.0,
    ) -> T:
        """Run work in a transaction and commit it; see `Write`."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(
            Write(
                work=work,
                future=future,
                deadline=time.monotonic() + patience,
                look=look,
                then=then,
                when_locked_out=when_locked_out,
                lasting=lasting,
                urgent=urgent,
                owed_for=owed_for,
            )
        )
        return await future

    def run_errand(self, work: Work[None]) -> None:
        """Run a read that nothing waits for, before any later job."""
        if self.usable:
            self._jobs.put(Errand(work))

    async def stop(self, within: float = STOP_SECONDS) -> None:
        """Finish pending jobs, close the connection and end the thread.

        Jobs that still wait for the lock after so many seconds fail. So does a statement that runs for longer.
        """
        if not self.usable:
            return
        self._open = False
        stop = Stop(asyncio.get_running_loop().create_future(), time.monotonic() + within)
        self._jobs.put(stop)
        # A thread that waits for the lock notices the deadline one slice late.
        _ = await asyncio.wait([stop.future], timeout=within + SLICE_SECONDS + _INTERRUPTED_SECONDS)
        if not stop.future.done():
            self._link.interrupt()
            _ = await asyncio.wait([stop.future], timeout=_INTERRUPTED_SECONDS)
        if stop.future.done():
            self._thread.join()
        else:
            logger.warning("thread %s did not stop in time; it ends with the process", self._thread.name)

    def _submit(self, job: Job) -> None:
        self._origin.refuse_elsewhere()
        if not self._open:
            raise StoreUnavailable("this store is closed: open it first")
        self._jobs.put(job)

    # ------------------------------------------------------------------------------------- on the thread

    def _serve(self) -> None:
        waiting: list[Write[Any]] = []
        stop: Stop | None = None
        try:
            while stop is None or waiting:
                stop = self._take_in(waiting) or stop
                if stop is not None:
                    for job in waiting:
                        job.deadline = min(job.deadline, stop.deadline)
                waiting.sort(key=_urgent_first)
                waiting[:_MOST_TOGETHER] = write_together(self._link, waiting[:_MOST_TOGETHER])
                if self._tower is not None and not self._tower.empty:
                    self._run_errand(self._tower.look)
        except BaseException:
            logger.critical("thread %s ended: open the store again", self._thread.name, exc_info=True)
        finally:
            self._open = False
            self._link.drop()
            self._answer_the_rest(waiting, stop)

    def _take_in(self, waiting: list[Write[Any]]) -> Stop | None:
        """Answer reads, and add writes to those waiting. Returns the stop, if there is one."""
        stop: Stop | None = None
        for job in self._arrivals(wait=not waiting):
            match job:
                case Stop():
                    stop = job
                case Errand(work):
                    self._run_errand(work)
                case Look():
                    self._look(job, job.work)
                case Write():
                    if job.look is None or self._look(job, job.look):
                        waiting.append(job)
        return stop

    def _answer_the_rest(self, waiting: Sequence[Write[Any]], stop: Stop | None) -> None:
        """Answer all remaining jobs as the thread ends, for whatever reason: no caller may hang."""
        rest: list[Job] = [*waiting]
        with suppress(Empty):
            while True:
                job = self._jobs.get_nowait()
                if isinstance(job, Stop):
                    stop = job
                elif not isinstance(job, Errand):
                    rest.append(job)
        hand_over((job, Failed(StoreUnavailable("the store was closed"))) for job in rest)
        if stop is not None:
            hand_over([(stop, Succeeded(None))])

    def _arrivals(self, *, wait: bool) -> Iterator[Job | Errand | Stop]:
        """New jobs. With `wait`, waits for one, but not past the next look at what others have written."""
        tower = self._tower
        try:
            yield self._jobs.get(
                block=wait, timeout=None if tower is None or tower.empty else tower.watch_seconds
            )
            while True:
                yield self._jobs.get_nowait()
        except Empty:
            return

    def _look(self, job: Job, look: Work[Any]) -> bool:
        """Read for this job and answer it, unless there is something to write. Returns whether there is."""
        if job.future.cancelled():
            return False
        answer: Answer
        try:
            found = look(self._link.connection())
            if found is None and isinstance(job, Write):
                return True
            answer = Succeeded(found)
        except sqlite3.Error as error:
            if is_busy(error) and time.monotonic() < job.deadline:
                # Readers never wait for writers: the log is being recovered, or removed by the last to close.
                self._jobs.put(job)
                return False
            if in_doubt(error):
                self._link.drop()
            answer = Failed(translated(error, self._link.file))
        except Exception as error:  # noqa: BLE001 - the caller gets it, and the thread lives on
            answer = Failed(error)
        hand_over([(job, answer)])
        return False

    def _run_errand(self, work: Work[None]) -> None:
        """Run a read that has no caller. A failure must not end the thread: all later calls would hang."""
        try:
            work(self._link.connection())
        except Exception as error:
            if in_doubt(error):
                self._link.drop()
            if isinstance(error, sqlite3.Error | StoreUnavailable):
                logger.debug("a look for wake-ups failed: %s", error)
            else:
                logger.exception("a look for wake-ups failed")


def _urgent_first(job: Write[Any]) -> bool:
    return not job.urgent
