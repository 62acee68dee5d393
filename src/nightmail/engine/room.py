"""How much room a worker has: how many messages, and how many bytes, it may still claim."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from nightmail.engine.run import Run
from nightmail.engine.settling import SETTLE_BATCH
from nightmail.limits import CLAIM_BYTES

UNSETTLED: Final = 3 * SETTLE_BATCH
"""How many finished messages may wait to be written before fewer are claimed: up to here a claim need not wait."""
REVIEW_SECONDS: Final = 1.0
"""How often to check, while there is no room, whether what was fetched ahead will still start soon."""
FEWEST_BYTES: Final = CLAIM_BYTES // 4
"""How many bytes there must be room for before more is claimed: one at a time would be slow."""


class Room:
    """The room of one worker, in one run of it."""

    def __init__(self, run: Run) -> None:
        self.lacks_bytes = False
        """Whether a claim waits because there is no room for bytes."""
        self._run = run
        self._in_flight = run.in_flight
        self._finished = run.finished
        self._prefetch = run.prefetch
        self._grown = run.room_grown
        self._max_workers = run.settings.max_workers
        self._batch = run.batch
        self._review_at = 0.0

    def for_messages(self, now: float) -> int:
        """How many more to claim."""
        return self._space(self._prefetch.ahead(now))

    def for_bytes(self) -> int:
        """How many more bytes may wait here, to be started or to be written."""
        return CLAIM_BYTES - self._in_flight.waiting_bytes - self._finished.bytes

    def suffices(self) -> bool:
        """Whether there is enough for a claim."""
        ahead = self._prefetch.ahead(time.monotonic())
        return self._space(ahead) > ahead // 2 and self.for_bytes() >= FEWEST_BYTES

    async def wait(self) -> None:
        """Until there is enough for a claim."""
        while not self.suffices():
            self.lacks_bytes = self.for_bytes() < FEWEST_BYTES
            self._grown.clear()
            try:
                async with asyncio.timeout(REVIEW_SECONDS):
                    await self._grown.wait()
            except TimeoutError:
                self.review()

    def note_bytes(self) -> None:
        """A started message frees its bytes: a claim that had no room for bytes can go now."""
        if self.for_bytes() >= FEWEST_BYTES:
            self.lacks_bytes = False
            self._grown.set()

    def review_after(self, now: float) -> None:
        """What is fetched ahead has just come: it is early to hand it back."""
        self._review_at = now + REVIEW_SECONDS

    def review(self) -> None:
        """Hand back what will not start soon: handlers take longer than before, and other workers may be free."""
        now = time.monotonic()
        if now >= self._review_at:
            self._review_at = now + REVIEW_SECONDS
            # What free handlers are about to start stays: this process may only have stood still for a while.
            keep = self._free + self._prefetch.ahead(now)
            self._run.hand_back(self._in_flight.give_back(keep=keep))

    @property
    def _free(self) -> int:
        """How many can start at once. A handler with half a batch is as busy as one with a whole one."""
        return (self._max_workers - self._in_flight.handlers) * self._batch

    def _space(self, ahead: int) -> int:
        # What is not settled yet counts too, or a store that cannot write would fill our memory.
        return self._free + ahead - self._in_flight.waiting - max(len(self._finished) - UNSETTLED, 0)
