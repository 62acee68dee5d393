"""Verbs of several calls: once begun they are carried out whole, whether or not the caller still waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

FAREWELL_SECONDS: Final = 1.0


class Whole:
    """The verbs of one open store that are under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, verb: Coroutine[Any, Any, T]) -> T:
        """Carry this out, to its end."""
        task = asyncio.create_task(verb)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(seen)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for those that are under way, within reason."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FAREWELL_SECONDS)


def seen(task: asyncio.Task[Any]) -> None:
    """Its caller is told its error; a cancelled one is not, and asyncio must not log it."""
    if not task.cancelled():
        task.exception()
