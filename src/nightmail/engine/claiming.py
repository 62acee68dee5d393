"""Claims messages: when there is room for them, something may be due, and no quarantined message forbids it.

Only waiting is interrupted: a claim cut off half-way would leave messages leased with no worker to run them.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

from nightmail.bell import Bell
from nightmail.engine.idle_looks import IdleLooks
from nightmail.engine.next_look import is_routine, next_look
from nightmail.engine.prefetch import ClaimSize
from nightmail.engine.presence import Presence
from nightmail.engine.quarantined import Quarantined
from nightmail.engine.room import REVIEW_SECONDS, Room
from nightmail.engine.run import Run
from nightmail.engine.runners import Runners
from nightmail.engine.sorting import Sorting


class Claiming:
    """Claims for one worker, in one run of it."""

    bell: Bell
    """Rings when something may be due: of the store, which rings it as long as the worker listens."""

    def __init__(
        self,
        run: Run,
        room: Room,
        sorting: Sorting,
        quarantined: Quarantined,
        runners: Runners,
        presence: Presence,
        idle_looks: IdleLooks,
    ) -> None:
        self._run = run
        self._room = room
        self._sorting = sorting
        self._quarantined = quarantined
        self._runners = runners
        self._presence = presence
        self._idle_looks = idle_looks
        self._store = run.store
        self._leases = run.leases
        self._alarm = run.alarm
        self._size = ClaimSize(run.batch)
        self._looked = False
        """Whether `until_idle` has looked since everything came to rest."""

    def until_stopped(self) -> Coroutine[Any, Any, None]:
        """Claim whenever it is time."""
        return self._run.retry_loop.repeat(
            self._claim, when=self._work_expected, until=self._run.stopping.asked
        )

    async def until_idle(self) -> None:
        """Claim until nothing is due any more and nothing is in flight."""
        while not self._run.stopping.asked.is_set():
            self._looked = False
            await self._run.retry_loop.repeat(
                self._claim, when=self._come_to_rest, until=self._run.stopping.asked, once=True
            )
            if self._looked and not len(self._leases):
                return

    async def recall(self) -> None:
        """Hand back what the last claim took if its reply was lost: no worker could have it before the lease ends."""
        if self._leases.unconfirmed is not None:
            token, until = self._leases.unconfirmed
            if time.monotonic() < until:
                await self._store.recall(self._run.queues, token)
            self._leases.unconfirmed = None

    async def _come_to_rest(self) -> None:
        """Until nothing is in flight, and claims are allowed; at once after a claim whose reply was lost."""
        if self._leases.unconfirmed is not None:
            return
        if self._quarantined.message is not None:
            await self._quarantined.run()
        await self._run.in_flight.wait_empty()
        await self._run.finished.wait_none()
        await self._quarantined.wait_claims_allowed()

    async def _work_expected(self) -> None:
        """Until there is room, something may be due (woken, or the time has come), and claims are allowed.

        At once after a claim whose reply was lost: it is recalled whether there is room for another or not.
        """
        if self._leases.unconfirmed is not None:
            return
        if self._quarantined.message is not None:
            await self._quarantined.run()
        await self._room.wait()
        while seconds := self._alarm.seconds_from(time.monotonic()):
            if await self.bell.wait(min(seconds, REVIEW_SECONDS) if self._run.in_flight.waiting else seconds):
                self._alarm.at_once()
                self._run.observer.woken()
                break
            self._room.review()
        # Last: another worker may have quarantined a message while we waited for the rest.
        await self._quarantined.wait_claims_allowed()

    async def _claim(self) -> None:
        await self.recall()
        if self._quarantined.forbids_claims:
            return  # A message was quarantined just now: wait again.
        if await self._idle_looks.puts_off(self._alarm):
            return
        self.bell.clear()
        sent, lease = time.monotonic(), self._run.settings.lease
        room, bytes_left = self._room.for_messages(sent), self._room.for_bytes()
        if room <= 0 or bytes_left <= 0:
            return
        limit = self._size.limit(
            room if self._quarantined.most is None else min(room, self._quarantined.most),
            short=self._presence.is_shared or self._store.capabilities.serial,
        )
        token, until = self._presence.new_token(), sent + lease.total_seconds()
        self._looked = True
        self._leases.unconfirmed = token, until
        try:
            claimed = await self._store.claim(
                self._run.queues,
                limit=limit,
                lease=lease,
                token=token,
                max_bytes=min(self._size.max_bytes, bytes_left),
            )
        except Exception:
            # It may have been carried out only just now, however long ago it was sent.
            self._leases.unconfirmed = token, time.monotonic() + lease.total_seconds()
            self._size.failed()
            raise
        self._leases.unconfirmed = None
        self._size.went_well(len(claimed.deliveries), limit, full=claimed.full)
        try:
            self._sorting.take(claimed, sent, until)
        finally:
            # Whatever is wrong with one of them, the others run.
            self._runners.start()
        if claimed.full:
            self._alarm.at_once()
        else:
            interval = self._store.look_interval
            self._alarm.set(
                next_look(sent, claimed.next_in, interval), routine=is_routine(claimed.next_in, interval)
            )
