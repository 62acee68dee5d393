"""What becomes of the messages of a claim: they wait for their handlers, run alone, go back, or end at once."""

from __future__ import annotations

import time

from nightmail.engine.attempt import Attempt
from nightmail.engine.pausing import Pausing
from nightmail.engine.quarantine import is_quarantined
from nightmail.engine.quarantined import Quarantined
from nightmail.engine.room import Room
from nightmail.engine.run import Run
from nightmail.message import Delivery
from nightmail.store import Claimed


class Sorting:
    """Sorts what one worker claims, in one run of it."""

    def __init__(
        self, run: Run, attempt: Attempt, pausing: Pausing, quarantined: Quarantined, room: Room
    ) -> None:
        self._run = run
        self._attempt = attempt
        self._pausing = pausing
        self._quarantined = quarantined
        self._room = room
        # In child processes a handler takes no others down with it.
        self._isolated = run.settings.isolated

    def take(self, claimed: Claimed, sent: float, until: float) -> None:
        """This was claimed, by a claim sent at that moment; it is leased until then."""
        deliveries = claimed.deliveries
        self._run.leases.add(deliveries, until)
        if claimed.probe:
            self._run.probes.update(deliveries)
        ready: list[Delivery] = []
        quarantined: list[Delivery] = []
        broken: Exception | None = None
        for delivery in deliveries:
            try:
                skipped = self._attempt.skip_outcome(delivery)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not strand the others of this claim
                broken = broken or error
                self._run.hand_back([delivery])
                continue
            if skipped is not None:
                if claimed.probe:
                    self._pausing.did_not_run(delivery)
                self._run.end_unstarted(delivery, skipped)
            elif self._pausing.paused and self._pausing.holds_back(delivery, sent):
                self._run.hand_back([delivery])
            elif is_quarantined(delivery) and not self._isolated:
                quarantined.append(delivery)
            else:
                ready.append(delivery)
        self._quarantined.sort_out(quarantined, full=claimed.full)
        if self._run.stopping.asked.is_set():
            self._run.hand_back(ready)
        elif ready:
            now = time.monotonic()
            self._room.review_after(now)
            self._run.in_flight.take(ready, sent)
            self._run.lateness.claimed(ready, now)
        # Last: an observer that raises although it must not may not leave a message leased and never run.
        if deliveries:
            self._run.observer.claimed(deliveries)
        if broken is not None:
            raise broken
