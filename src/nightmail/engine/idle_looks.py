"""One look for all workers of a process that have nothing to do.

An idle worker looks every five seconds, in case a wake-up was lost. Twenty of them would make four claims a second that
find nothing. So the first whose time has come asks when something is due in the queues of all of them, and puts off the
looks of those for whom nothing is. A worker that is woken, or knows when something is due, claims by itself at that
moment: what is due is picked up no later than without this.
"""

from __future__ import annotations

import asyncio
import time

from nightmail.engine.next_look import Alarm, is_routine, next_look
from nightmail.store import LooksAhead, Source


class IdleLooks:
    """Shared by the workers of one process."""

    def __init__(self) -> None:
        self._members: dict[Alarm, tuple[Source, tuple[str, ...]]] = {}
        self._looking: asyncio.Task[None] | None = None

    def join(self, alarm: Alarm, source: Source, queues: tuple[str, ...]) -> None:
        """A worker with this alarm starts."""
        self._members[alarm] = source, queues

    def leave(self, alarm: Alarm) -> None:
        """It has stopped."""
        self._members.pop(alarm, None)

    async def puts_off(self, alarm: Alarm) -> bool:
        """Whether one look for all has shown that this worker need not look now, although its time has come."""
        if not alarm.is_routine or alarm.seconds_from(time.monotonic()) or alarm not in self._members:
            return False
        source, _ = self._members[alarm]
        if not isinstance(source, LooksAhead) or len(self._idle(source)) == 1:
            return False  # For one alone, a claim is as cheap, and takes what it finds.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(source))
        # Shielded: a worker that is stopped while it waits does not take the look from the others.
        await asyncio.shield(self._looking)
        # Though a slow server took longer to answer than the interval: then it is asked once more, not once by each.
        return alarm.is_routine or bool(alarm.seconds_from(time.monotonic()))

    async def _look(self, source: LooksAhead) -> None:
        idle = self._idle(source)
        sent, interval = time.monotonic(), source.look_interval
        expected = await source.look_ahead(sorted({queue for queues in idle.values() for queue in queues}))
        for alarm, queues in idle.items():
            next_in = min((expected[queue] for queue in queues if queue in expected), default=None)
            alarm.put_off(next_look(sent, next_in, interval), routine=is_routine(next_in, interval))

    def _idle(self, source: object) -> dict[Alarm, tuple[str, ...]]:
        """Those who look there, and only because the interval has passed."""
        return {
            alarm: queues
            for alarm, (other, queues) in self._members.items()
            if other is source and alarm.is_routine
        }
