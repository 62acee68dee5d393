"""How far a long command has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from time import monotonic
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from nightmail.cli.output import Output
from nightmail.wording import count, length

EVERY_SECONDS: Final = 5.0


class Counter:
    """Counts what is done."""

    def __init__(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self.done = 0

    def __call__(self, done: int) -> None:
        """So many are done."""
        self.done = done

    def preparing(self, read: int) -> None:
        """None is done yet, and so many have been looked at."""


class _Bar(Counter):
    def __init__(self, what: str, total: int, progress: Progress) -> None:
        super().__init__(what, total)
        self._progress = progress
        self._task = progress.add_task(what, total=total)

    def __call__(self, done: int) -> None:
        super().__call__(done)
        self._progress.update(self._task, completed=done, description=self.what)

    def preparing(self, read: int) -> None:
        self._progress.update(self._task, description=f"{self.what} (looked at {read:,})")


class _Lines(Counter):
    def __init__(self, what: str, total: int) -> None:
        super().__init__(what, total)
        self._said_at = monotonic()

    def __call__(self, done: int) -> None:
        super().__call__(done)
        self._say(f"{self.what}: {done:,} of {self.total:,}")

    def preparing(self, read: int) -> None:
        self._say(f"{self.what}: none yet, looked at {read:,}")

    def _say(self, line: str) -> None:
        if monotonic() - self._said_at >= EVERY_SECONDS:
            self._said_at = monotonic()
            print(line, file=sys.stderr, flush=True)


@contextmanager
def counting(what: str, total: int) -> Iterator[Counter]:
    """A counter that shows itself until the block is left. On the standard error: the answer stays clean."""
    if not sys.stderr.isatty():
        yield _Lines(what, total)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        yield _Bar(what, total, bar)


@asynccontextmanager
async def working(what: str) -> AsyncIterator[None]:
    """Shows for how long something has been going on, until the block is left: how far it is cannot be known."""
    if sys.stderr.isatty():
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            bar.add_task(what, total=None)
            yield
        return
    lines = asyncio.create_task(_say_how_long(what))
    try:
        yield
    finally:
        lines.cancel()


async def _say_how_long(what: str) -> None:
    began = monotonic()
    while True:
        await asyncio.sleep(EVERY_SECONDS)
        print(f"{what}: {length(timedelta(seconds=round(monotonic() - began)))}", file=sys.stderr, flush=True)


@contextmanager
def told_if_interrupted(out: Output, counter: Counter) -> Iterator[None]:
    """If what follows is interrupted, say how far it came."""
    try:
        yield
    except asyncio.CancelledError:
        out.note(f"{counter.what} so far: {count(counter.done)} of {count(counter.total)}")
        raise
