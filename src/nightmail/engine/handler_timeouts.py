"""Handlers that exceed `handler_timeout`.

One timer for all of them: a timer per handler would be set and cancelled once per message, which costs more than many
handlers do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from nightmail.engine.slot import HandlerSlot


class HandlerTimeouts:
    """Cancels handlers that have run longer than the limit, and marks their slots."""

    def __init__(self, limit: float, slots: Collection[HandlerSlot]) -> None:
        self._limit = limit
        self._slots = slots
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Watch these slots for as long as there are any."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limit, self._look)

    def close(self) -> None:
        """Nothing will run any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Cancel what has exceeded the limit, and look again when the next one could."""
        self._timer = None
        now = time.monotonic()
        next_look = self._limit
        for slot in self._slots:
            if not slot.results or slot.overdue:
                continue
            left = slot.begun + self._limit - now
            if left > 0:
                next_look = min(next_look, left)
            else:
                slot.overdue = True
                slot.task.cancel()
        if self._slots:
            self._timer = asyncio.get_running_loop().call_later(next_look, self._look)
