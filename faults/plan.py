"""The long run: which scenario, on which store, with how many faults, how often. Together they make the figures.

Each row is a run that can be repeated alone with its seed. Every pair of scenario and store comes once before any comes
again, so that a run that is cut short has tried as much as it could.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from faults.figures import Figures
from faults.scenarios import SCENARIOS, Scenario

FAULTS: Final[Mapping[str, int]] = {
    "failover": 7,
    "cut-off": 3,
    "all-lost": 3,
    "crashes": 30,
    "power-loss": 15,
    "kills": 100,
    "pauses": 40,
    "cancellations": 13_000,
    "crowd": 60,
    "def-handlers": 24,
    "poison": 5,
    "stops": 20,
    "paused": 8,
    "lost-replies": 200,
    "network": 100,
    "clock-steps": 12,
    "disk-full": 4,
    "connections": 6,
    "wakeups": 30,
    "clocks": 6,
    "old-snapshot": 4,
    "blocked": 4,
    "gil": 4,
    "forks": 5,
}
"""In this order: how many faults of its kind a scenario injects in one run. All of them are here, because a run that is
cut short leaves out the end."""
USUAL_SECONDS: Final = 45.0
"""How long a run takes of which nothing is known yet."""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    scenario: Scenario
    store: str
    faults: int

    @property
    def pair(self) -> Pair:
        return self.scenario.name, self.store

    def within(self, seconds: float, needed: float) -> Row:
        """The same with fewer faults, if so many seconds are left for a plan that needs more: but not with too few."""
        if needed <= seconds:
            return self
        fewer = int(self.faults * seconds / needed)
        return replace(self, faults=min(max(fewer, self.scenario.faults), self.faults))


def rows(times: int = 1) -> list[Row]:
    """The whole plan, in order."""
    once = [
        Row(SCENARIOS[name], store, faults)
        for name, faults in FAULTS.items()
        for store in SCENARIOS[name].stores
    ]
    return once * times


class Estimate:
    """How long runs take, by those that there were."""

    def __init__(self, before: Iterable[Figures]) -> None:
        self._known: dict[Pair, float] = {(run.scenario, run.store): run.whole_seconds for run in before}
        self._now: dict[Pair, float] = {}
        self._expected = 0.0

    def of(self, pair: Pair) -> float:
        """One run of this pair, as fast or as slow as the machine is today."""
        if pair in self._now:
            return self._now[pair]
        usual = sum(self._known.values()) / len(self._known) if self._known else USUAL_SECONDS
        return self._known.get(pair, usual) * self._pace()

    def took(self, pair: Pair, seconds: float) -> None:
        """This one has just run."""
        self._expected += self._known.get(pair, seconds)
        self._now[pair] = seconds

    def left(self, rest: Sequence[Row]) -> float:
        """All of these together."""
        return sum(self.of(row.pair) for row in rest)

    def _pace(self) -> float:
        return sum(self._now.values()) / self._expected if self._expected else 1.0


def table(plan: Sequence[Row], before: Sequence[Figures]) -> Iterator[str]:
    """The plan, to read: with what the last run of each made, where there was one."""
    estimate = Estimate(before)
    last = {(run.scenario, run.store): run for run in before}
    yield f"{'scenario':<14} {'store':<22} {'faults':>7} {'seconds':>8} {'messages':>9}"
    for row in plan:
        known = last.get(row.pair)
        made = f"{known.messages:,}" if known else "?"
        yield f"{row.scenario.name:<14} {row.store:<22} {row.faults:>7,} {estimate.of(row.pair):>8.0f} {made:>9}"
    faults = sum(row.faults for row in plan)
    messages = sum(last[row.pair].messages for row in plan if row.pair in last)
    minutes = estimate.left(plan) / 60
    yield f"{len(plan)} runs, {faults:,} faults; about {minutes:.0f} min and {messages:,} messages, as last time"
