"""Who has been published to, and the number by which this store's ids differ from those of others.

The names of the queues are in a slot of their own, so they cannot be written by the script that stores a message. They
are written before it: a queue that has a message is listed, and one that is listed may be empty.
"""

from __future__ import annotations

from collections.abc import Iterable

from nightmail.stores.redis.ids import Ids
from nightmail.stores.redis.keys import Keys
from nightmail.stores.redis.lane import Lane


class Registry:
    """What one open store has entered."""

    def __init__(self, lane: Lane, keys: Keys) -> None:
        self._lane = lane
        self._keys = keys
        self._ids: Ids | None = None
        self._listed: set[str] = set()
        self._losses = 0

    async def enter(self, queues: Iterable[str] = ()) -> Ids:
        """Have these queues listed, and get the ids of this store. Asks the server only about what is new."""
        if self._losses != self._lane.losses:
            # Another server may have taken over that never saw our entries.
            self._losses = self._lane.losses
            self._listed.clear()
        new = [queue for queue in dict.fromkeys(queues) if queue not in self._listed]
        ids = self._ids
        if ids is None:
            (number,) = await self._lane.ask(self._keys.processes, ("INCR", self._keys.processes))
            # Somebody else may have asked meanwhile: one number is enough.
            ids = self._ids = self._ids or Ids(int(number))
        if new:
            await self._lane.ask(self._keys.queues, ("SADD", self._keys.queues, *new))
            self._listed.update(new)
        return ids

    async def queues(self) -> list[str]:
        """All queues that were ever published to, by name."""
        (found,) = await self._lane.ask(self._keys.queues, ("SMEMBERS", self._keys.queues))
        return sorted(name.decode("utf-8", "backslashreplace") for name in found)
