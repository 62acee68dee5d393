"""Writes what has finished, in batches. It leaves `Finished` only after the store has answered."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import Final

from nightmail.engine.run import Run
from nightmail.outcome import WriteResult

SETTLE_BATCH: Final = 1000
GATHER_SECONDS: Final = 0.010
"""How long a finished message waits for others, while others are in flight."""
BUSY_SECONDS: Final = 0.1
"""How long before retrying a row that an open transaction has locked."""


class Settling:
    """Settles for one worker, in one run of it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._finished = run.finished

    async def until_drained(self) -> None:
        """Settle until all is handed back."""
        run = self._run
        while not run.drained.is_set():
            try:
                await run.retry_loop.repeat(self._settle, when=self._gathered, until=run.drained)
            except asyncio.CancelledError:
                # When `asyncio.run` ends it cancels every task. This one is needed until all is handed back.
                if run.drained.is_set():
                    raise

    async def _gathered(self) -> None:
        """Until something is finished and, while others are in flight, a moment longer so that they go together."""
        await self._finished.wait_some()
        if not self._run.in_flight.is_empty and len(self._finished) < SETTLE_BATCH:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER_SECONDS):
                    await self._run.in_flight.wait_empty()

    async def _settle(self) -> None:
        run, batch = self._run, list(islice(self._finished, SETTLE_BATCH))
        try:
            results = await run.store.settle(batch)
        except BaseException:
            self._finished.ask_again(batch)
            raise
        answers = list(zip(batch, results, strict=True))
        busy = [settlement for settlement, result in answers if result is WriteResult.BUSY]
        settled = [settlement for settlement, result in answers if result is WriteResult.WRITTEN]
        self._finished.drop_first(len(batch))
        self._finished.put_all(busy)
        run.leases.drop({each.delivery for each in batch}.difference(each.delivery for each in busy))
        # With nothing in flight any more, no handler is left to signal that there is room again.
        run.room_grown.set()
        if settled:
            run.pace.settled(settled)
            run.observer.settled(settled)
        for settlement, result in answers:
            if result is WriteResult.LOST:
                run.leases.lost += 1
                run.observer.lease_lost(settlement.delivery)
            elif result is WriteResult.UNKNOWN:
                run.observer.uncertain(settlement)
        if busy:
            await asyncio.sleep(BUSY_SECONDS)
