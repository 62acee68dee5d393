"""Work that runs to its end, whether or not its caller still waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

FAREWELL_SECONDS: Final = 1.0


class ToTheEnd:
    """Verbs of several calls: cut off between two of them, they would leave half of their work."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, verb: Coroutine[Any, Any, T]) -> T:
        """Run this to its end."""
        task = asyncio.create_task(verb)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(forget_error)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for the running verbs, within a time limit."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FAREWELL_SECONDS)


def forget_error(task: asyncio.Task[Any]) -> None:
    """Mark the error as retrieved: a cancelled caller does not get it, and asyncio must not log it."""
    if not task.cancelled():
        task.exception()
