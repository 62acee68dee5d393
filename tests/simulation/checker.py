"""Decides whether a journal keeps every promise. Knows nothing of plans and seeds, only what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tests.simulation import engine_rules, store_rules
from tests.simulation.engine_rules import latest
from tests.simulation.events import (
    Acknowledged,
    Claimed,
    Committed,
    Ended,
    Event,
    Extended,
    Killed,
    Over,
    ProbedAgain,
    Reported,
    Resumed,
    Settled,
    Started,
    StopEnded,
    Stored,
)
from tests.simulation.ledger import Ledger

Rule: TypeAlias = Callable[[Any, Ledger], Iterator[str]]

RULES: Final[dict[Rule, tuple[type[Event], ...]]] = {
    store_rules.never_early: (Claimed,),
    store_rules.one_lease: (Claimed,),
    store_rules.obeys_pauses: (Claimed,),
    store_rules.fenced: (Settled, Extended, Committed),
    store_rules.in_order: (Claimed,),
    store_rules.timer_ids: (Stored,),
    store_rules.counters: (Claimed,),
    store_rules.nothing_lost: (Acknowledged, Over),
    engine_rules.runs_once: (Started,),
    engine_rules.right_outcome: (Settled,),
    engine_rules.no_needless_duplicate: (Claimed,),
    engine_rules.starts_nothing_paused: (Started,),
    engine_rules.stops_when_told: (Started, Ended),
    engine_rules.resumes_after_success: (Resumed,),
    engine_rules.probes_again_unheard: (ProbedAgain,),
    engine_rules.signs_off: (Reported, Over),
    engine_rules.stops_in_time: (StopEnded,),
    engine_rules.poison_alone: (Started, Killed, Over),
    engine_rules.delivered: (Over,),
    engine_rules.no_complaints: (Over,),
}
"""Every rule, and the events by which it may be broken."""
_BY_EVENT: Final = {
    kind: [rule for rule, kinds in RULES.items() if kind in kinds]
    for kinds in RULES.values()
    for kind in kinds
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept."""

    rule: str
    said: str
    event: Event

    def __str__(self) -> str:
        return f"{self.rule}: {self.said}\n    at {str(self.event).strip()}"


class Checker:
    """Hears every event as it happens; keeps the first violation."""

    def __init__(self) -> None:
        self.violation: Violation | None = None
        self._ledger = Ledger()
        self._look_at = 0

    def hear(self, event: Event) -> None:
        """This happened."""
        if self.violation is None:
            for rule in _BY_EVENT.get(type(event), ()):
                for said in rule(event, self._ledger):
                    self.violation = self.violation or Violation(rule.__name__, said, event)
            self._ledger.apply(event)

    def is_late(self, at: int) -> bool:
        """Whether something should have been delivered by now: waiting longer would only take time."""
        if at < self._look_at:
            return False
        self._look_at = at + 1_000_000
        ledger = self._ledger
        return any(entry.gone is None and at >= latest(entry, ledger) for entry in ledger.messages.values())


def check(journal: Iterable[Event]) -> Violation | None:
    """The first promise that this journal breaks."""
    checker = Checker()
    for event in journal:
        checker.hear(event)
    return checker.violation
