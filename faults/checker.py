"""Decides whether a journal keeps every promise. Knows nothing of scenarios and seeds, only what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from faults.ledger import Ledger
from faults.rules import handling, leases, messages

Finding: TypeAlias = tuple[str, str]
"""The key of a message, or nothing, and what is wrong."""
Rule: TypeAlias = Callable[[Ledger], Iterator[Finding]]

RULES: Final[tuple[Rule, ...]] = (
    messages.nothing_lost,
    messages.nothing_vanishes,
    messages.no_phantom,
    messages.effects_once,
    messages.timer_ids,
    messages.delivered,
    messages.used_again,
    leases.never_early,
    leases.one_lease,
    leases.fenced,
    leases.in_order,
    leases.counters,
    handling.runs_once,
    handling.right_outcome,
    handling.no_needless_duplicate,
    handling.duplicates_bounded,
    handling.taken_over,
    handling.picked_up,
    handling.poison_alone,
    handling.stops_in_time,
    handling.ends_well,
    handling.obeys_pauses,
)
"""Every rule. The deterministic simulation has rules of the same names over histories of its own."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept."""

    rule: str
    said: str
    key: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.said}"


def check(ledger: Ledger) -> list[Violation]:
    """Every promise that this journal breaks."""
    return [Violation(rule.__name__, said, key) for rule in RULES for key, said in rule(ledger)]
