"""The line between a worker and its store: how long a call travels, and what goes wrong with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.simulation.events import Fault
from tests.simulation.journal import Journal

LATE: Final = (0.2, 5.0)
"""How late a late call is: some are later than a lease."""
DEADLINE: Final = (3.0, 8.0)
"""After how long a driver gives up on a call that hangs."""
REPEATABLE: Final = frozenset({"settle", "extend", "recall"})
"""What a driver may send again by itself when it got no answer."""
ANSWERS_BUSY: Final = frozenset({"settle", "extend"})
KINDS: Final = (
    "lost request",
    "lost reply",
    "late request",
    "late reply",
    "heard late",
    "twice",
    "busy",
    "hangs",
)


@dataclass(slots=True)
class Trip:
    """How one call travels; times in seconds from when it is sent."""

    arrives: float | None
    """When it is carried out; `None`: never."""
    answered: float | None = None
    """When its caller gets the answer; `None`: never."""
    fails: float | None = None
    """When its caller gets an error instead."""
    known: bool = False
    """Whether that error says that nothing was carried out."""
    again: float | None = None
    """When it is carried out once more."""
    busy: bool = False
    """Whether the store finds everything locked."""
    upset: str = ""
    """What is wrong with it."""
    noted_until: int = 0
    """Until when that was noted to last, in microseconds of the history."""


class Line:
    """One worker's line."""

    def __init__(
        self, worker: str, chance: Random, journal: Journal, *, upset: float, latency: float
    ) -> None:
        self.cut_until = 0.0
        """Until when no call arrives."""
        self._worker = worker
        self._chance = chance
        self._journal = journal
        self._upset = upset
        self._latency = latency

    def trip(self, verb: str) -> Trip:
        """How the next call of this verb travels."""
        chance, journal = self._chance, self._journal
        there = chance.uniform(0.0002, self._latency)
        back = there + chance.uniform(0.0002, self._latency)
        if journal.now < self.cut_until and not journal.is_calm:
            return self._noted(verb, "cut off", Trip(None, fails=there, known=chance.random() < 0.5))
        if not self._upset or journal.is_calm or chance.random() >= self._upset:
            return Trip(there, answered=back)
        kind = chance.choice(KINDS)
        if (kind == "twice" and verb not in REPEATABLE) or (kind == "busy" and verb not in ANSWERS_BUSY):
            kind = "lost reply"
        return self._noted(verb, kind, self._upset_trip(kind, there, back))

    def _upset_trip(self, kind: str, there: float, back: float) -> Trip:
        chance = self._chance
        match kind:
            case "lost request":
                return Trip(None, fails=back + chance.uniform(0.0, 0.5), known=chance.random() < 0.5)
            case "lost reply":
                return Trip(there, fails=back + chance.uniform(0.0, 0.5))
            case "late request":
                late = chance.uniform(*LATE)
                return Trip(late, answered=late + back)
            case "late reply":
                return Trip(there, answered=back + chance.uniform(*LATE))
            case "heard late":
                # Its caller is told that it failed, and then it is carried out all the same.
                fails = back + chance.uniform(0.0, 0.5)
                return Trip(fails + chance.uniform(0.001, 2.0), fails=fails)
            case "twice":
                return Trip(there, again=back, answered=back + back)
            case "busy":
                return Trip(there, answered=back, busy=True)
            case _:
                deadline = chance.uniform(*DEADLINE)
                return Trip(chance.choice((None, there, deadline - 0.001)), fails=deadline)

    def _noted(self, verb: str, kind: str, trip: Trip) -> Trip:
        journal = self._journal
        journal.faults[kind] += 1
        seconds = max(each for each in (trip.arrives, trip.answered, trip.fails, 0.0) if each is not None)
        trip.upset = kind
        self._note_until(verb, trip, seconds)
        return trip

    def is_carried_out(self, verb: str, trip: Trip, wait: float) -> None:
        """Its caller hears of it so many seconds from now: later than was noted, if the store took its time."""
        if trip.upset and self._journal.at + round(wait * 1_000_000) > trip.noted_until:
            self._note_until(verb, trip, wait)

    def _note_until(self, verb: str, trip: Trip, seconds: float) -> None:
        journal = self._journal
        trip.noted_until = journal.at + round(seconds * 1_000_000)
        journal.note(
            Fault(at=journal.at, worker=self._worker, kind=trip.upset, verb=verb, until=trip.noted_until)
        )


Faults = Counter[str]
