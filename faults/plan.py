"""The long run: which scenario, on which store, with how many faults, how often. Together they make the figures.

Each row is a run that can be repeated alone with its seed. Every pair of scenario and store comes once before any comes
again, so that a run that is cut short has tried as much as it could.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from faults.figures import Figures
from faults.scenarios import SCENARIOS, Scenario

PerStore: TypeAlias = Mapping[str, int]

FAULTS: Final[Mapping[str, int | PerStore]] = {
    "failover": {"redis-cluster": 11, "valkey-cluster": 11, "galera": 9, "patroni": 4},
    "cut-off": {
        "redis-cluster": 3, "redis-cluster-guarded": 3, "redis-cluster-waiting": 3, "patroni": 2, "patroni-async": 2,
    },
    "all-lost": {"galera": 3, "galera-unsynced": 2},
    "crashes": {
        "postgres": 22, "mariadb": 40, "redis": 40, "postgres-unsynced": 8, "mariadb-unsynced": 8, "redis-unsynced": 8,
    },
    "power-loss": {"redis": 12, "redis-everysec": 8},
    "kills": 120,
    "pauses": 40,
    "cancellations": 13_000,
    "crowd": 50,
    "def-handlers": 14,
    "poison": 5,
    "stops": 8,
    "paused": 4,
    "lost-replies": 60,
    "network": 40,
    "clock-steps": 4,
    "disk-full": 3,
    "connections": 3,
    "wakeups": 12,
    "clocks": 3,
    "old-snapshot": 2,
    "blocked": 2,
    "gil": 2,
    "forks": 3,
}  # fmt: skip
"""In this order: how many faults of its kind a scenario injects in one run. All of them are here, because a run that is
cut short leaves out the end."""
WANTED: Final[Mapping[str, int]] = {
    "messages": 1_000_000,
    "workers killed": 500,
    "servers killed": 100,
    "failovers": 30,
    "pauses beyond the lease": 150,
    "cancellations": 50_000,
}
"""What the whole plan has to come to where nothing may be lost, by the names of `report.totals`. How many messages it
comes to depends on the machine: that is known only when it has run."""
COUNTED: Final[Mapping[str, tuple[str, float]]] = {
    "failover": ("failovers", 1.0),
    "crashes": ("servers killed", 1.0),
    "power-loss": ("servers killed", 1.0),
    "kills": ("workers killed", 0.7),
    "crowd": ("workers killed", 0.4),
    "def-handlers": ("workers killed", 0.5),
    "poison": ("workers killed", 2.4),
    "pauses": ("pauses beyond the lease", 1.0),
    "cancellations": ("cancellations", 1.0),
}
"""The scenarios that these come from, and how many of one's faults are of that name at least: `kills` hits publishers,
too, and a poison message kills several workers."""
USUAL_SECONDS: Final = 45.0
"""How long a run takes of which nothing is known yet."""
START_SECONDS: Final = 5.0
"""How long the processes of a run take to start and to end, whatever is done to them between."""

Pair: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    scenario: Scenario
    store: str
    faults: int

    @property
    def pair(self) -> Pair:
        return self.scenario.name, self.store

    @property
    def is_durable(self) -> bool:
        """Whether nothing may be lost in it: only then it counts."""
        return self.store not in self.scenario.forgives

    @property
    def counts(self) -> tuple[str, float] | None:
        """What of the wanted figures it makes, and how much."""
        if not self.is_durable or self.scenario.name not in COUNTED:
            return None
        name, share = COUNTED[self.scenario.name]
        return name, share * self.faults

    @property
    def least(self) -> Row:
        """The same with as few faults as make sense: as many as in a run of it alone, or half of what is planned."""
        return replace(self, faults=min(self.scenario.faults, (self.faults + 1) // 2))

    def within(self, seconds: float, rest: Sequence[Row], estimate: Estimate) -> Row:
        """The same with fewer faults, if so many seconds are too few for it and the rest: but not with too few.

        What the wanted figures need is cut last.
        """
        both = (self, *rest)
        counting = estimate.left([row for row in both if row.counts])
        others = [row for row in both if not row.counts]
        if self.counts:
            there, needed = seconds - estimate.left([row.least for row in others]), counting
        else:
            there, needed = seconds - counting, estimate.left(others)
        if needed <= there:
            return self
        fewer = int(self.faults * max(there, 0.0) / needed)
        return replace(self, faults=max(fewer, self.least.faults))


def rows(times: int = 1) -> list[Row]:
    """The whole plan, in order."""
    once = [
        Row(SCENARIOS[name], store, faults if isinstance(faults, int) else faults[store])
        for name, faults in FAULTS.items()
        for store in SCENARIOS[name].stores
    ]
    return once * times


@dataclass(frozen=True, slots=True)
class Known:
    """A run that there was."""

    faults: int
    seconds: float
    fixed: float
    """How much of that does not depend on how many faults there are."""
    messages: int = 0

    @classmethod
    def of(cls, run: Figures) -> Known:
        """This one."""
        servers = max(run.whole_seconds - run.seconds, 0.0)
        return cls(run.asked, run.whole_seconds, servers + START_SECONDS, run.messages)

    def with_faults(self, faults: int) -> float:
        """How long it would have taken with so many."""
        if not self.faults:
            return self.seconds
        fixed = min(self.fixed, self.seconds)
        return fixed + (self.seconds - fixed) * faults / self.faults


class Estimate:
    """How long runs take, by those that there were: of each pair, by the one with the most faults."""

    def __init__(self, before: Iterable[Figures]) -> None:
        self._known: dict[Pair, Known] = {}
        for run in before:
            pair = run.scenario, run.store
            if pair not in self._known or run.asked >= self._known[pair].faults:
                self._known[pair] = Known.of(run)
        self._now: dict[Pair, Known] = {}
        self._took = 0.0
        self._expected = 0.0

    def of(self, row: Row) -> float:
        """This run, as fast or as slow as the machine is today."""
        if row.pair in self._now:
            return self._now[row.pair].with_faults(row.faults)
        known = self._known.get(row.pair)
        return (known.with_faults(row.faults) if known else self._usual()) * self._pace()

    def messages(self, row: Row) -> int | None:
        """How many it publishes; nothing, if it has not run yet."""
        known = self._known.get(row.pair)
        if known is None:
            return None
        return known.messages * row.faults // known.faults if known.faults else known.messages

    def took(self, row: Row, seconds: float) -> None:
        """This one has just run."""
        known = self._known.get(row.pair)
        if known is not None:
            self._took += seconds
            self._expected += known.with_faults(row.faults)
        self._now[row.pair] = Known(row.faults, seconds, known.fixed if known else START_SECONDS)

    def left(self, rest: Sequence[Row]) -> float:
        """All of these together."""
        return sum(self.of(row) for row in rest)

    def _usual(self) -> float:
        known = self._known.values()
        return sum(each.seconds for each in known) / len(known) if known else USUAL_SECONDS

    def _pace(self) -> float:
        return self._took / self._expected if self._expected else 1.0


def table(plan: Sequence[Row], before: Sequence[Figures]) -> Iterator[str]:
    """The plan, to read: with what runs before it made, where there were any."""
    estimate = Estimate(before)
    yield f"{'scenario':<14} {'store':<22} {'faults':>7} {'seconds':>8} {'messages':>9}"
    for row in plan:
        messages = estimate.messages(row)
        made = "?" if messages is None else f"{messages:,}"
        yield f"{row.scenario.name:<14} {row.store:<22} {row.faults:>7,} {estimate.of(row):>8.0f} {made:>9}"
    faults = sum(row.faults for row in plan)
    minutes = estimate.left(plan) / 60
    yield f"{len(plan)} runs, {faults:,} faults; about {minutes:.0f} min, by the runs before"
    counts = ", ".join(f"{count:,} {name}" for name, count in expected(plan).items())
    messages = sum(estimate.messages(row) or 0 for row in plan if row.is_durable)
    yield f"where nothing may be lost: about {messages:,} messages; at least {counts}"


def expected(plan: Iterable[Row]) -> Counter[str]:
    """What the plan comes to at least where nothing may be lost, by the names of `WANTED`."""
    counts: defaultdict[str, float] = defaultdict(float)
    for row in plan:
        if row.counts is not None:
            name, count = row.counts
            counts[name] += count
    return Counter({name: int(count) for name, count in counts.items()})
