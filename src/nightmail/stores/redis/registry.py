"""The list of queues, and the number that makes this store's ids unique.

The names of the queues are in a slot of their own, so they cannot be written by the script that stores a message. They
are written before it: a queue that has a message is listed, and one that is listed may be empty.

Each name is listed with the time, and again while the queue is published to. So a queue that has long been empty can
be struck off (see `sweeping`), but not one that is about to get a message.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from nightmail.errors import StoreUnavailable
from nightmail.stores.redis.ids import PROCESS_BITS, Ids
from nightmail.stores.redis.lane import Lane
from nightmail.stores.redis.requests import Commands
from nightmail.stores.redis.script_calls import ScriptCalls
from nightmail.stores.redis.times import micros, time_micros

LISTED_FOR: Final = timedelta(minutes=10)
"""After this a queue is listed again before it is published to."""
STRUCK_OFF_AFTER: Final = timedelta(hours=1)
"""How long ago a queue must have been listed to be struck off: much longer than `LISTED_FOR`."""
NUMBER_SECONDS: Final = 1.0
NUMBER_AGAIN_SECONDS: Final = 5.0


class Registry:
    """What one open store has listed."""

    def __init__(self, lane: Lane, calls: ScriptCalls) -> None:
        self._lane = lane
        self._calls = calls
        self._keys = calls.keys
        self._ids: Ids | None = None
        self._spare = Ids(secrets.randbelow(1 << PROCESS_BITS))
        """Without a number from the server: almost certainly no other store has the same."""
        self._number_at = 0.0
        self._listed: dict[str, float] = {}
        self._losses = 0
        self._relisting: asyncio.Task[None] | None = None

    async def ids(self) -> Ids:
        """The ids of this store. Available even if the server is full or does not answer."""
        if self._ids is None and asyncio.get_running_loop().time() >= self._number_at:
            await self._ask_for_number()
        return self._ids or self._spare

    async def _ask_for_number(self) -> None:
        try:
            async with asyncio.timeout(NUMBER_SECONDS):
                (number,) = await self._lane.run(
                    Commands(self._keys.processes, ("INCR", self._keys.processes))
                )
        except (StoreUnavailable, TimeoutError):
            self._number_at = asyncio.get_running_loop().time() + NUMBER_AGAIN_SECONDS
            return
        # Another task may have asked meanwhile: one number is enough.
        if self._ids is None:
            self._ids = Ids(int(number))

    async def enter(self, queues: Iterable[str]) -> Ids:
        """List these queues, and return the ids of this store. Calls the server only for stale entries."""
        ids = self._ids or await self.ids()
        now = self._now()
        losses = await self._lane.losses(self._keys.queues)
        if self._losses != losses:
            # After a failover the new primary may lack our entries.
            self._losses = losses
            self._listed = dict.fromkeys(self._listed, now - 2 * LISTED_FOR.total_seconds())
        wanted = dict.fromkeys(queues)
        if new := [queue for queue in wanted if queue not in self._listed]:
            await self._list(new)
        oldest = now - LISTED_FOR.total_seconds()
        if old := [queue for queue in wanted if self._listed[queue] < oldest]:
            if any(self._listed[queue] < now - STRUCK_OFF_AFTER.total_seconds() / 2 for queue in old):
                await self._list(old)
            elif self._relisting is None or self._relisting.done():
                # They are on the list already: publishing to them does not depend on its node.
                self._relisting = asyncio.create_task(self._list_again(old))
        return ids

    async def queues(self) -> list[str]:
        """All queues that are listed, by name."""
        (found,) = await self._lane.run(Commands(self._keys.queues, ("ZRANGE", self._keys.queues, 0, -1)))
        return sorted(name.decode("utf-8", "backslashreplace") for name in found)

    async def strike_off(self, queues: Sequence[str]) -> None:
        """Take these off the list, except recently listed ones."""
        if queues:
            call = self._calls.call(
                "strike_off", [self._keys.registry_tag], micros(STRUCK_OFF_AFTER), *queues
            )
            await self._lane.run(call)

    async def _list(self, queues: Sequence[str]) -> None:
        await self._lane.run(self._calls.call("enlist", [self._keys.registry_tag], *queues))
        self._listed.update(dict.fromkeys(queues, self._now()))

    async def _list_again(self, queues: Sequence[str]) -> None:
        # If that fails, the next publish tries again.
        with suppress(StoreUnavailable):
            await self._list(queues)

    def _now(self) -> float:
        """Seconds by the clock that the scripts use: both must measure the same time."""
        now = self._calls.clock.now()
        return asyncio.get_running_loop().time() if now is None else time_micros(now) / 1_000_000
