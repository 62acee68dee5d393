"""Messages that an operator wants stopped: the keeper's renewals say which.

A handler that runs is cancelled, as at a time-out; a message that waits is not started. Either becomes a dead letter.
Of a batch the others are handed back: their handler cannot be ended for one message alone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from nightmail.engine.quarantined import Quarantined
from nightmail.engine.run import Run
from nightmail.message import Delivery
from nightmail.outcome import Dead, Reason
from nightmail.store import Control

UNKNOWN: Final = "an operator"


def stopped_by(who: str, *, ran: bool = True) -> Dead:
    """The outcome of a stopped message."""
    return Dead(Reason.STOPPED, f"stopped by {who}", ran)


class StopRequests:
    """Carries out what operators ask of one worker."""

    def __init__(self, run: Run, control: Control | None, quarantined: Quarantined) -> None:
        self._run = run
        self._control = control
        self._quarantined = quarantined
        self._in_flight = run.in_flight
        self._observer = run.observer
        self._asking: dict[Delivery, asyncio.Task[None]] = {}

    def add(self, delivery: Delivery) -> None:
        """This one is to be stopped. It may come again and again, until it has stopped."""
        if delivery not in self._asking and not any(
            delivery in slot.stopped for slot in self._in_flight.slots
        ):
            self._asking[delivery] = asyncio.create_task(self._stop(delivery))

    async def _stop(self, delivery: Delivery) -> None:
        try:
            by = await self._who(delivery)
        finally:
            del self._asking[delivery]
        for slot in self._in_flight.slots:
            if delivery in slot.results:
                self._observer.stopped(delivery, by)
                slot.stop(delivery, by)
                return
        if self._quarantined.forget(delivery) or self._in_flight.forget(delivery):
            self._observer.stopped(delivery, by)
            self._run.end_unstarted(delivery, stopped_by(by, ran=False))

    async def _who(self, delivery: Delivery) -> str:
        if self._control is not None:
            with suppress(Exception):  # A name is not worth letting it run on.
                return (await self._control.facts(delivery.id)).stop_requested_by or UNKNOWN
        return UNKNOWN
