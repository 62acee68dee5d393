"""Reads how the queues stand periodically."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from nightmail.durations import Duration, as_positive
from nightmail.observe import Observer
from nightmail.operations.status import Looks
from nightmail.store import FullStore


class QueueWatch:
    """Reads how the queues stand periodically, as `status` does, and passes it to `observer`: `start` until `stop`.

    The store is queried once per `every`, never by a scrape. The answer is the same in every process, so one of many is
    enough.
    """

    def __init__(
        self, store: FullStore, observer: Observer, *, every: Duration = timedelta(seconds=30)
    ) -> None:
        self._looks = Looks(store)
        self._observer = observer
        self._every = as_positive("every", every)
        self._failing = False
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read now, then periodically. Does nothing when it is already running."""
        if self._running is None:
            await self.look()
            self._running = asyncio.create_task(self._look_on(), name="nightmail queue watch")

    async def stop(self) -> None:
        """Stop reading, and withdraw the last numbers: they would go stale."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait({running})
            self._observer.counted(None)

    async def look(self) -> None:
        """Read once. A store that does not answer is reported, not raised."""
        try:
            queues = await self._looks.look()
        except Exception as error:  # noqa: BLE001 - no message depends on this
            self._failing = True
            self._observer.counted(None)
            self._observer.store_unavailable(error, self._every)
            return
        if self._failing:
            self._failing = False
            self._observer.store_recovered()
        self._observer.counted(queues)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(self._every.total_seconds())
            await self.look()
