"""From the start of a handler to its settlement: what a runner does with the message, or the batch, in its slot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from nightmail.engine.attempt import Attempt
from nightmail.engine.pausing import Pausing
from nightmail.engine.room import Room
from nightmail.engine.run import Run
from nightmail.engine.slot import HandlerSlot
from nightmail.message import Delivery
from nightmail.outcome import Release
from nightmail.store import Settlement

FEW: Final = 16


class Handling:
    """Handles for one worker, in one run of it."""

    def __init__(self, run: Run, attempt: Attempt, pausing: Pausing, room: Room) -> None:
        self._run = run
        self._attempt = attempt
        self._pausing = pausing
        self._room = room
        # Looked up here, and not for each message.
        self._in_flight = run.in_flight
        self._leases = run.leases
        self._finished = run.finished
        self._prefetch = run.prefetch
        self._lateness = run.lateness
        self._observer = run.observer
        self._probes = run.probes
        self._room_grown = run.room_grown

    async def one(self, slot: HandlerSlot, now: float) -> float:
        """Run the message in this slot; when it has ended."""
        in_flight = self._in_flight
        (delivery,) = slot.results
        if self._room.lacks_bytes:
            self._room.note_bytes()
        settlement: Settlement | None = None
        ended = now
        self._prefetch.started(now, in_flight.handlers)
        try:
            if self._leases.surely_holds(delivery, now):
                if delivery.id in self._lateness.sampled:
                    self._lateness.started(delivery, now)
                settlement = await self._attempt.one(delivery, slot)
                if self._probes:
                    self._pausing.ended(delivery, slot.results[delivery], settlement)
                ended = time.monotonic()
                self._prefetch.ran(ended - now)
                self._observer.ended((delivery,), ended - now)
            else:
                # The claim or a pause took longer than the lease. Hand it back, unless another worker has it by now.
                settlement = Settlement(delivery, Release())
        finally:
            if slot.left_behind:
                pass  # Its thread still runs: nothing is written, and its lease is kept.
            elif settlement is None:
                self._leases.drop([delivery])
                self._note_acks(slot, [delivery])
            else:
                self._finished.put(settlement)
            in_flight.finish(slot)
            # While many wait, every eighth time is often enough to check.
            waiting = in_flight.waiting
            if (waiting < FEW or waiting % 8 == 0) and self._room.suffices():
                self._room_grown.set()
        return ended

    async def many(self, slot: HandlerSlot, now: float) -> float:
        """Run the messages in this slot together; when they have ended."""
        in_flight = self._in_flight
        batch = list(slot.results)
        if self._room.lacks_bytes:
            self._room.note_bytes()
        held = self._leases.surely_held(batch, now)
        if len(held) < len(batch):
            self._run.hand_back(each for each in batch if each not in held)
        settlements: list[Settlement] = []
        ended = now
        self._prefetch.started(now, in_flight.handlers, len(batch))
        try:
            if held:
                in_flight.narrow(slot, held)
                for delivery in held:
                    if delivery.id in self._lateness.sampled:
                        self._lateness.started(delivery, now)
                settlements = await self._attempt.many(held, slot)
                if self._probes:
                    self._note_probes(slot, settlements)
                ended = time.monotonic()
                self._prefetch.ran(ended - now, len(held))
                self._observer.ended(held, ended - now)
        finally:
            if not slot.left_behind:
                unwritten = set(held).difference(each.delivery for each in settlements)
                self._leases.drop(unwritten)
                self._finished.put_all(settlements)
                self._note_acks(slot, unwritten)
            in_flight.finish(slot)
            if self._room.suffices():
                self._room_grown.set()
        return ended

    def _note_acks(self, slot: HandlerSlot, unwritten: Iterable[Delivery]) -> None:
        """Of these, for which there is nothing to write, some were acknowledged in the handler's own transaction."""
        for delivery in unwritten:
            result = slot.results[delivery]
            if result.acked_in_transaction and result.error is None:
                self._run.pace.acked(delivery.queue)

    def _note_probes(self, slot: HandlerSlot, settlements: Sequence[Settlement]) -> None:
        written = {settlement.delivery: settlement for settlement in settlements}
        for delivery, result in slot.results.items():
            self._pausing.ended(delivery, result, written.get(delivery))
