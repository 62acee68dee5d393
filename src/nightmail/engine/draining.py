"""The end of a worker: what has not started goes back, what runs may end, and everything is written."""

from __future__ import annotations

import asyncio
from functools import partial

from nightmail.engine.claiming import Claiming
from nightmail.engine.pausing import Pausing
from nightmail.engine.quarantined import Quarantined
from nightmail.engine.retry_loop import happens_before
from nightmail.engine.run import Run
from nightmail.engine.shutdown import A_MOMENT, ends_by
from nightmail.message import Delivery


class Draining:
    """Drains one worker, at the end of one run of it."""

    def __init__(self, run: Run, claiming: Claiming, quarantined: Quarantined, pausing: Pausing) -> None:
        self.left_behind: list[Delivery] = []
        """Whose threads still run: their leases are kept."""
        self._run = run
        self._claiming = claiming
        self._quarantined = quarantined
        self._pausing = pausing
        self._in_flight = run.in_flight
        self._leases = run.leases
        self._finished = run.finished
        self._stopping = run.stopping

    async def drain(self, claims: asyncio.Task[None]) -> None:
        """Hand back what has not started, finish what runs, past the grace period cancel it; then the last writes."""
        self._run.hand_back(self._in_flight.give_back())
        self._quarantined.hand_back()
        confirming = asyncio.create_task(self._confirm(claims))
        await self._finish_running()
        await self._stopping.ends_in_time(confirming)
        await self._pausing.finish(self._stopping.last_writes_end())
        await ends_by(self._stopping.last_writes_end(), self._finished.wait_none())
        self._run.drained.set()
        self._run.observer.drained(self._leases.others_than(self.left_behind))

    async def _confirm(self, claims: asyncio.Task[None]) -> None:
        """Wait for a claim that is under way. What it took, and may have taken, goes back at once."""
        if not await self._stopping.ends_in_time(claims) and not claims.cancelled():
            return
        if self._leases.unconfirmed is not None:
            recalled = self._run.retry_loop.repeat(self._claiming.recall, until=self._run.drained, once=True)
            await ends_by(self._stopping.last_writes_end(), recalled)

    async def _finish_running(self) -> None:
        ended = happens_before(self._in_flight.wait_empty(), self._stopping.in_a_hurry)
        await ends_by(self._stopping.grace_ends, ended)
        for task in self._in_flight.tasks():
            task.cancel()
        # A handler that refuses to be cancelled is left behind; its lease ends by itself.
        await ends_by(self._stopping.handlers_left_behind, self._in_flight.wait_empty())
        await self._leave_behind()

    async def _leave_behind(self) -> None:
        """Wait no longer for threads that do not end. Their messages stay leased for as long as they run."""
        left = []
        for slot in self._in_flight.slots:
            if (call := slot.call) is None or call.is_over:
                continue
            kept = [each for each, result in slot.results.items() if not result.acked_in_transaction]
            self.left_behind += kept
            slot.left_behind = True
            call.leave_behind(partial(self._leases.drop, kept))
            slot.task.cancel()
            left.append(slot.task)
        if left:
            await asyncio.wait(left, timeout=A_MOMENT)
