"""What all runs together come to: the figures that the long run is made for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from faults.figures import Figures
from faults.journal import BY_A_MESSAGE
from faults.scenarios import SCENARIOS
from faults.stage import WORKER_KILLED

MESSAGES: Final = "messages"
KINDS: Final = {
    "workers killed": (WORKER_KILLED, BY_A_MESSAGE),
    "servers killed": ("server killed", "power lost"),
    "failovers": ("failover", "failover to a copy that was cut off"),
    "pauses beyond the lease": ("pause",),
    "cancellations": ("cancelled handler", "cancelled publish"),
}
"""The kinds of fault that are counted together."""


@dataclass(slots=True)
class Totals:
    """Of all runs so far."""

    messages: int = 0
    lost: int = 0
    """Where nothing may be lost."""
    violations: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, run: Figures) -> None:
        """This one too."""
        self.messages += run.messages
        self.lost += 0 if run.store in SCENARIOS[run.scenario].forgives else run.lost
        self.violations += len(run.violations)
        self.faults.update(run.faults)

    @classmethod
    def of(cls, runs: Iterable[Figures]) -> Totals:
        """Of these."""
        totals = cls()
        for run in runs:
            totals.add(run)
        return totals

    def count(self, name: str) -> int:
        """How many of these faults, or of the messages."""
        return self.messages if name == MESSAGES else sum(self.faults[kind] for kind in KINDS[name])

    def missed(self, wanted: Mapping[str, int]) -> list[str]:
        """Which of these figures they do not come to, in words."""
        return [
            f"{self.count(name):,} of {least:,} {name}"
            for name, least in wanted.items()
            if self.count(name) < least
        ]

    def __str__(self) -> str:
        counts = ", ".join(f"{self.count(name):,} {name}" for name in KINDS)
        return f"{self.messages:,} messages, {counts}; lost {self.lost}, promises broken {self.violations}"
