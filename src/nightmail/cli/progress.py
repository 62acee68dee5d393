"""How far a long command has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
