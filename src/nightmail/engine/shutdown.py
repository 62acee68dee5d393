"""The deadlines of a stopping worker, and how to leave behind what will not end.

All deadlines are fixed when the stop is requested, so that the total is bounded whatever a store or a handler does:

    stop ── handlers may end ── cancelled ── last writes ── done
            ╰─ graceful_timeout ─╯╰──── LAST_WRITES_SECONDS ───╯
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, Final

LAST_WRITES_SECONDS: Final = 2.5
"""How long after the grace period a worker may take: cancelled handlers, a claim under way, the last settlements."""
FOR_HANDLERS: Final = 0.6
"""How much of that cancelled handlers may take: others must still be written."""
A_MOMENT: Final = 0.1
"""How long anything may take that starts past its deadline."""


class Stopping:
    """Whether a worker is to stop, and by when."""

    def __init__(self, grace: timedelta) -> None:
        self.asked = asyncio.Event()
        self.in_a_hurry = asyncio.Event()
        """No grace: handlers are cancelled at once."""
        self._grace = grace.total_seconds()
        self._grace_ends = 0.0

    def ask(self) -> None:
        """Stop; the time runs from the first such call."""
        if not self.asked.is_set():
            self._grace_ends = time.monotonic() + self._grace
            self.asked.set()

    def hurry(self) -> None:
        """Stop at once."""
        self.ask()
        self._grace_ends = min(self._grace_ends, time.monotonic())
        self.in_a_hurry.set()

    @property
    def grace_ends(self) -> float:
        """When handlers are cancelled."""
        return self._grace_ends

    @property
    def handlers_left_behind(self) -> float:
        """When a handler that was cancelled and goes on is no longer waited for."""
        return self._grace_ends + LAST_WRITES_SECONDS * FOR_HANDLERS

    def last_writes_end(self) -> float:
        """The deadline for writes from now on: a dead store need not use up the grace period too."""
        return min(self.ends, time.monotonic() + LAST_WRITES_SECONDS)

    @property
    def ends(self) -> float:
        """When nothing is waited for any more."""
        return self._grace_ends + LAST_WRITES_SECONDS

    async def ends_in_time(self, waiting: Awaitable[Any]) -> bool:
        """Wait for this until nothing is waited for any more, as `ends_by` does. A hurry brings that moment forward."""
        task, hurried = asyncio.ensure_future(waiting), asyncio.ensure_future(self.in_a_hurry.wait())
        try:
            left = max(self.ends - time.monotonic(), 0.0)
            await asyncio.wait({task, hurried}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            leave_behind(task)
            raise
        finally:
            hurried.cancel()
        return await ends_by(self.ends, task)


async def first_ended(*tasks: asyncio.Task[None]) -> None:
    """Until one of these has ended, however it did."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def ends_by(moment: float, waiting: Awaitable[Any]) -> bool:
    """Wait for this until then; whether it has ended. If not, it is cancelled and left behind.

    Unlike with `asyncio.timeout`, what ignores its cancellation holds nothing up.
    """
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait({task}, timeout=max(moment - time.monotonic(), 0.0))
    finally:
        if not task.done():
            leave_behind(task)
    return task.done() and not task.cancelled()


def leave_behind(task: asyncio.Future[Any]) -> None:
    """Cancel this and do not wait for it. What it still raises is ignored."""
    task.add_done_callback(_ignored)
    task.cancel()


async def undisturbed(task: asyncio.Task[Any]) -> None:
    """Wait until this has ended, however often we are cancelled meanwhile: anyio cancels at every step.

    How it ended is for the caller to ask.
    """
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue
    _ignored(task)


def _ignored(task: asyncio.Future[Any]) -> None:
    """Retrieve its exception, or asyncio would log that it was never retrieved."""
    if not task.cancelled():
        task.exception()
