"""Jobs for a connection thread, and how their answers get back to the event loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], T]


@dataclass(frozen=True, slots=True)
class Succeeded(Generic[T]):
    """The work was done."""

    result: T


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing was written."""

    error: BaseException


@dataclass(eq=False, slots=True, kw_only=True)
class Look(Generic[T]):
    """Work that only reads."""

    work: Work[T]
    future: asyncio.Future[T]
    deadline: float


@dataclass(eq=False, slots=True, kw_only=True)
class Write(Generic[T]):
    """Work that writes, in a transaction it shares with other jobs."""

    work: Work[T]
    future: asyncio.Future[T]
    deadline: float
    """Until when to wait for the lock."""
    look: Work[T | None] | None = None
    """Runs first, without the lock. What it returns is the answer; `None` means that there is something to write."""
    when_locked_out: Callable[[], T] | None = None
    """The answer if the lock is not acquired in time; without it, that is an error."""
    then: Callable[[T], None] | None = None
    """Called on the event loop after the commit, even if the caller no longer waits for the answer."""
    lasting: bool = True
    """Whether it must survive a power cut."""
    urgent: bool = False
    """Whether it runs before others, and polls for the lock more often."""
    owed_for: float = 0.0
    """For so many seconds after `when_locked_out` was answered, it is still done if the lock becomes free."""


@dataclass(eq=False, slots=True)
class Errand:
    """A read that nothing waits for."""

    work: Work[None]


@dataclass(eq=False, slots=True)
class Stop:
    """The last job of a thread."""

    future: asyncio.Future[None]
    deadline: float
    """Until when earlier jobs may keep waiting for the lock."""


Job: TypeAlias = Look[Any] | Write[Any]
Answer: TypeAlias = Succeeded[Any] | Failed


def hand_over(answers: Iterable[tuple[Job | Stop, Answer]]) -> None:
    """Deliver the answers to the event loops that wait for them, with one call per loop."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Job | Stop, Answer]]] = defaultdict(list)
    for job, answer in answers:
        by_loop[job.future.get_loop()].append((job, answer))
    for loop, its_own in by_loop.items():
        with suppress(RuntimeError):  # The loop is closed: nothing waits any more.
            loop.call_soon_threadsafe(_tell, its_own)


def _tell(answers: Iterable[tuple[Job | Stop, Answer]]) -> None:
    for job, answer in answers:
        match answer:
            case Succeeded(result):
                if not job.future.done():
                    job.future.set_result(result)
                if isinstance(job, Write) and job.then is not None:
                    job.then(result)
            case Failed(error):
                if not job.future.done():
                    job.future.set_exception(error)
