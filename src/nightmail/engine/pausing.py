"""Pauses, as one worker keeps and makes them.

A claim takes nothing of what is paused. What was claimed a while ago and has not started is checked again before it
starts: one look for all that wait, at most every half second, and none while messages start soon after their claim.

A handler or a breaker pauses a queue automatically. From the end of that pause on the store gives out one message at
a time, as a probe: if that is done the queue is resumed, if it fails the pause goes on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from nightmail.controls import PauseCause
from nightmail.engine.failure_counts import FailureCounts
from nightmail.engine.next_look import backoff
from nightmail.engine.result import Result
from nightmail.engine.run import Run
from nightmail.engine.shutdown import ends_by
from nightmail.message import Delivery
from nightmail.outcome import Done, Outcome, Postpone, Release
from nightmail.store import Control, Settlement

PATIENCE_SECONDS: Final = 0.5
"""For how long it counts that a message was not paused. With the time of a look it stays below one second."""
AT_LEAST_SECONDS: Final = 0.05
"""For how long a look counts that took longer than that: else a slow store would keep everything from starting."""
ATTEMPTS: Final = 3
"""How often a pause or its end is sent to a store that does not answer."""


class Pausing:
    """The pauses of the queues of one worker, in one run of it."""

    def __init__(
        self, run: Run, control: Control | None, *, by: str, failures: FailureCounts | None = None
    ) -> None:
        """Without `control` nothing is ever paused: the store cannot, or pauses do not apply."""
        self.paused: dict[str, float] = {}
        """The queues that we paused, and when the store had noted it; `inf` while it has not answered."""
        self._run = run
        self._control = control
        self._in_flight = run.in_flight
        self._by = by
        self._observer = run.observer
        self._failures = failures if control is not None else None
        self._looking: asyncio.Task[None] | None = None
        self._writing: set[asyncio.Task[None]] = set()

    # ── what others paused ─────────────────────────────────────────────────────────────────────────────────

    async def check(self) -> None:
        """Hand back what waits and is paused by now. Those who ask at the same time share one look."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        await asyncio.wait({self._looking})

    async def _look(self) -> None:
        asked = time.monotonic()
        try:
            # A store that cannot say keeps nothing from running: the leases hold.
            with suppress(Exception):
                await self._hand_back_paused()
        finally:
            self._looking = None
            self._in_flight.were_checked(max(asked + PATIENCE_SECONDS, time.monotonic() + AT_LEAST_SECONDS))

    async def _hand_back_paused(self) -> None:
        if self._control is None:
            return
        pauses = await self._control.pauses()
        whole = {pause.queue for pause in pauses if pause.ordering_key is None}
        by_people = {pause.queue for pause in pauses if pause.ordering_key is None and not pause.automatic}
        keys = {(pause.queue, pause.ordering_key) for pause in pauses}

        def is_paused(delivery: Delivery) -> bool:
            # A probe is there to find out whether the automatic pause may end.
            queues = by_people if delivery in self._run.probes else whole
            return delivery.queue in queues or (
                delivery.ordering_key is not None and (delivery.queue, delivery.ordering_key) in keys
            )

        self._run.hand_back(self._in_flight.take_out(is_paused))

    # ── what we pause ──────────────────────────────────────────────────────────────────────────────────────

    def holds_back(self, delivery: Delivery, sent: float) -> bool:
        """Whether this one, of a claim that was sent at that moment, must not start: we have paused its queue since."""
        noted = self.paused.get(delivery.queue)
        if noted is None:
            return False
        if sent < noted < math.inf:
            return True
        if delivery not in self._run.probes and noted < math.inf:
            del self.paused[delivery.queue]  # It was given out after that: the queue was resumed.
        return False

    def request(self, queue: str, delay: timedelta, reason: str | None) -> None:
        """A handler wants nothing more of this queue for so long."""
        if self._control is not None and self.paused.get(queue) != math.inf:
            self._hold(queue)
            self._begin(queue, self._pause(self._control, queue, delay, reason, PauseCause.HANDLER))

    def failed(self, delivery: Delivery, error: Exception, begun: float) -> Outcome | None:
        """A handler that began then has failed: what becomes of its message if it shall not count as an attempt."""
        counts, control = self._failures, self._control
        if counts is None or control is None or not counts.counts(error):
            return None
        if delivery in self._run.probes:
            self._begin(delivery.queue, self._prolong(control, delivery, counts))
            # Later than others that are due: another message may be the next probe.
            return Postpone(counts.breaker.first_pause)
        if begun < self.paused.get(delivery.queue, -math.inf):
            return Release()
        return None

    def count(self, queue: str, error: Exception, at: float) -> None:
        """A handler of this queue has failed at that moment, by the store's clock, and that counts."""
        counts, control = self._failures, self._control
        if counts is None or control is None or not counts.counts(error):
            return
        seconds = counts.count(queue, at)
        if seconds is None or self.paused.get(queue) == math.inf:
            return
        breaker = counts.breaker
        self._hold(queue)
        self._observer.breaker_opened(queue, breaker.failures, seconds, breaker.first_pause)
        reason = f"{breaker.failures} failures in {seconds:.3g} s, the last one {type(error).__name__}"
        self._begin(queue, self._open(control, queue, breaker.first_pause, reason))

    def ended(self, delivery: Delivery, result: Result, settlement: Settlement | None) -> None:
        """This delivery has ended: if it was a probe and is done, its queue is resumed."""
        if delivery not in self._run.probes:
            return
        self._run.probes.discard(delivery)
        if settlement is None:
            done = result.acked_in_transaction and result.error is None
        else:
            done = isinstance(settlement.outcome, Done)
        if done and self._control is not None:
            self._begin(delivery.queue, self._resume(self._control, delivery.queue))

    def did_not_run(self, probe: Delivery) -> None:
        """This probe ends without its handler, which says nothing of the queue: another may be taken at once."""
        if self._control is not None:
            self._begin(probe.queue, _sent(partial(self._control.probe_again, probe)))

    async def finish(self, by: float) -> None:
        """Wait until everything is written, but no longer than until then."""
        if self._writing:
            await ends_by(by, asyncio.wait(self._writing))

    def _hold(self, queue: str) -> None:
        """We are about to pause this queue: what waits of it does not start."""
        self.paused[queue] = math.inf
        self._run.hand_back(self._in_flight.take_out(lambda delivery: delivery.queue == queue))

    # ── writing ────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, queue: str, work: Coroutine[Any, Any, None]) -> None:
        writing = asyncio.create_task(self._written(queue, work))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def _written(self, queue: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - whatever it is, messages go on, and may fail, as without a pause
            self._observer.store_unavailable(error, timedelta(0))
            if self.paused.get(queue) == math.inf:
                del self.paused[queue]

    async def _open(self, control: Control, queue: str, delay: timedelta, reason: str) -> None:
        """Pause for a breaker, unless the queue is paused automatically: another process may be further than we."""
        if any(pause.automatic for pause in await _sent(lambda: control.pauses(queue))):
            self._note(queue)
        else:
            await self._pause(control, queue, delay, reason, PauseCause.BREAKER)

    async def _prolong(self, control: Control, probe: Delivery, counts: FailureCounts) -> None:
        """A probe has failed: the next one comes after twice the time."""
        longest = counts.breaker.longest_pause
        for pause in await _sent(lambda: control.pauses(probe.queue)):
            if not pause.automatic or pause.until is None:
                continue
            # The claim of a probe renews the pause for as long as it was.
            length = pause.until - probe.claimed_at
            if length < longest:
                await self._pause(
                    control, probe.queue, min(2 * length, longest), pause.reason, PauseCause.BREAKER
                )

    async def _pause(
        self, control: Control, queue: str, delay: timedelta, reason: str | None, cause: PauseCause
    ) -> None:
        await _sent(lambda: control.pause(queue, until=delay, by=self._by, reason=reason, automatic=True))
        self._note(queue)
        self._observer.paused(queue, cause, self._by, delay, reason)

    def _note(self, queue: str) -> None:
        """The store has it. What has come meanwhile, or is on its way, does not start either."""
        self._hold(queue)
        self.paused[queue] = time.monotonic()

    async def _resume(self, control: Control, queue: str) -> None:
        if await _sent(lambda: control.resume(queue, automatic=True)):
            self.paused.pop(queue, None)
            self._observer.resumed(queue, self._by)


async def _sent(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What the store answers, if it does so at one of the first attempts."""
    for attempt in range(1, ATTEMPTS):
        try:
            return await call()
        except Exception:  # noqa: BLE001 - the last attempt raises
            await asyncio.sleep(backoff(attempt))
    return await call()
