"""Delete dead letters, and whatever is no longer needed: a bounded part per call, found by time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from nightmail.records import DeadFilter, Swept
from nightmail.stores.redis.ids import BEGINNING, DIGITS, PROCESS_BITS, digits
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.registry import STRUCK_OFF_AFTER, Registry
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.times import micros

AT_ONCE: Final = 1_000
"""How many of each one script deletes: some milliseconds in which no other client is served."""
_SHORTEST_MEMORY: Final = timedelta(hours=1)
"""How long moves from another slot are remembered, at least."""


class Sweeping:
    """Purge and sweep, on the connection for publishes."""

    def __init__(self, lane: Lane, registry: Registry, calls: ScriptCalls) -> None:
        self._lane = lane
        self._registry = registry
        self._calls = calls

    async def purge(self, which: DeadFilter, *, limit: int) -> int:
        """See `Inspection.purge`. First find the oldest, then delete them, queue by queue."""
        if limit <= 0 or which.ids == ():
            return 0
        queues = await self._registry.queues() if which.queue is None else [which.queue]
        found = [(id_, queue) for queue in queues for id_ in await self._meant(queue, which, limit)]
        oldest: dict[str, list[bytes]] = {}
        for id_, queue in sorted(found)[:limit]:
            oldest.setdefault(queue, []).append(id_)
        purged = 0
        for queue, ids in oldest.items():
            for first in range(0, len(ids), AT_ONCE):
                part = b"".join(ids[first : first + AT_ONCE])
                (count,) = await self._lane.run(
                    self._calls.call("purge", [self._calls.keys.tag(queue)], part)
                )
                purged += int(count)
        return purged

    async def _meant(self, queue: str, which: DeadFilter, limit: int) -> Sequence[bytes]:
        found: list[bytes] = []
        above = b""
        while True:
            call = self._calls.call(
                "purge_find",
                [self._calls.keys.tag(queue)],
                limit - len(found),
                above,
                "" if which.older_than is None else micros(which.older_than),
                "" if which.reason is None else f"!{which.reason}",
                "" if which.error is None else f"!{which.error}",
                *sorted({digits(id_) for id_ in which.ids or ()}),
            )
            ((above, part),) = await self._lane.run(call)
            found += [part[at : at + DIGITS] for at in range(0, len(part), DIGITS)]
            if not above or len(found) >= limit:
                return found

    async def sweep(self, *, older_than: timedelta, limit: int) -> Swept:
        """See `Inspection.sweep`. Queues by name, until there is enough of each."""
        swept = Swept()
        forget = digits(_id_of(max(older_than, _SHORTEST_MEMORY)))
        empty: list[str] = []
        for queue in await self._registry.queues():
            more = True
            while more:
                rooms = _rooms(swept, limit)
                call = self._calls.call(
                    "sweep",
                    [self._calls.keys.tag(queue)],
                    micros(older_than),
                    *rooms,
                    forget,
                    digits(_id_of(STRUCK_OFF_AFTER)),
                )
                ((*found, gone),) = await self._lane.run(call)
                swept += Swept(*(int(count) for count in found))
                if gone:
                    empty.append(queue)
                left = _rooms(swept, limit)
                more = any(
                    0 < room == count and rest for room, count, rest in zip(rooms, found, left, strict=True)
                )
            if not any(left):
                break
        await self._registry.strike_off(empty)
        return swept


def _rooms(swept: Swept, limit: int) -> list[int]:
    """How many of each kind the next call may delete."""
    return [max(min(limit - count, AT_ONCE), 0) for count in (swept.delivered, swept.dead, swept.dedup)]


def _id_of(age: timedelta) -> int:
    """An id as made that long ago."""
    return max(time.time_ns() // 1000 - BEGINNING - micros(age), 0) << PROCESS_BITS
