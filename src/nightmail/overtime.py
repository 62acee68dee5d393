"""Handlers that run longer than they may.

One timer for all of them: a timer of its own for every handler would be set and taken back once per message, which
costs more than many a handler does. All have the same limit, so the oldest is always the first to run over.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Overtime:
    """Cancels tasks that have run longer than the limit, and knows which those were."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._begun: dict[asyncio.Task[Any], float] = {}
        self._over: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[Any]) -> None:
        """This one starts now."""
        loop = task.get_loop()
        self._begun[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self.limit, self._look, loop)

    def end(self, task: asyncio.Task[Any]) -> bool:
        """This one has ended; whether it had been cancelled for running too long."""
        del self._begun[task]
        if task in self._over:
            self._over.remove(task)
            return True
        return False

    def close(self) -> None:
        """Nothing will run any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what has run over, and look again when the next one could."""
        self._timer = None
        for task, begun in self._begun.items():
            left = begun + self.limit - loop.time()
            if left > 0:
                self._timer = loop.call_later(left, self._look, loop)
                return
            if task not in self._over:
                self._over.add(task)
                task.cancel()
