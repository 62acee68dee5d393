"""Cancel and reschedule waiting messages."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.registry import Registry
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.times import micros, time_micros

AT_ONCE: Final = 10_000
"""How many messages one script removes: tens of milliseconds in which no other client is served."""


class Timers:
    """Verbs on waiting messages, on our own connection."""

    def __init__(self, lane: Lane, registry: Registry, calls: ScriptCalls) -> None:
        self._lane = lane
        self._registry = registry
        self._calls = calls

    async def cancel(self, queue: str, timer_id: str) -> bool:
        """See `Store.cancel`."""
        return bool(await self._one("cancel", queue, timer_id))

    async def reschedule(self, queue: str, timer_id: str, due: datetime | timedelta) -> bool:
        """See `Store.reschedule`."""
        if isinstance(due, datetime):
            return bool(await self._one("reschedule", queue, timer_id, "at", time_micros(due)))
        return bool(await self._one("reschedule", queue, timer_id, "in", micros(due)))

    async def cancel_some(self, queue: str, limit: int) -> int:
        """See `Store.cancel_all`, with its `limit`."""
        removed, _ = await self._one("cancel_all", queue, max(min(limit, AT_ONCE), 0), b"")
        return int(removed)

    async def cancel_all(self, queue: str) -> int:
        """See `Store.cancel_all`. More than ten thousand go in parts; what is published meanwhile stays."""
        removed, highest = 0, b""
        while True:
            part, highest = await self._one("cancel_all", queue, AT_ONCE, highest)
            removed += int(part)
            if part < AT_ONCE:
                return removed

    async def _one(self, script: str, queue: str, *arguments: bytes | str | int) -> Any:
        # Unreadable messages become dead letters, under our ids.
        ids = await self._registry.ids()
        tags = [self._calls.keys.tag(queue)]
        call = self._calls.call(script, tags, *arguments, letter=ids.next())
        (answer,) = await self._lane.run(call)
        return answer
