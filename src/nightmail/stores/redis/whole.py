"""Verbs of several calls: once begun they run to their end, whether or not the caller still waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

FAREWELL_SECONDS: Final = 1.0


class Whole:
    """The running verbs of one open store."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, verb: Coroutine[Any, Any, T]) -> T:
        """Run this to its end."""
        task = asyncio.create_task(verb)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(seen)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for the running verbs, within a time limit."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FAREWELL_SECONDS)


def seen(task: asyncio.Task[Any]) -> None:
    """Mark its error as seen: the caller gets it; a cancelled caller does not, and asyncio must not log it."""
    if not task.cancelled():
        task.exception()
