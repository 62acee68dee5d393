"""Every scenario: what is run on which stores, and about how long it takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.lab import Lab
from benchmarks.scenarios.dispatch import dispatch
from benchmarks.scenarios.drain import drain_backlog
from benchmarks.scenarios.future import future, ten_million
from benchmarks.scenarios.idle import idle
from benchmarks.scenarios.keys import keys
from benchmarks.scenarios.latency import lateness, lateness_under_load, pick_up
from benchmarks.scenarios.million import million
from benchmarks.scenarios.operating import operating
from benchmarks.scenarios.parameter import parameter
from benchmarks.scenarios.publish import publish
from benchmarks.scenarios.recovery import recovery
from benchmarks.scenarios.snapshot import snapshot
from benchmarks.scenarios.steady import steady
from benchmarks.scenarios.takeover import takeover
from benchmarks.scenarios.year import year
from benchmarks.systems import DEFAULTS, OUTBOX, PGQUEUER, STORES, TIMERS, System, on

NO_STORE: Final = "memory"
ALL_STORES: Final = "all"
"""In one go, on those that were chosen."""


@dataclass(frozen=True)
class Scenario:
    """One thing to measure."""

    name: str
    what: str
    run: Callable[[Lab, str], Awaitable[None]]
    seconds: dict[str, float]
    """About how long a full run takes, by store: for the progress bar."""
    quick: dict[str, float]
    """The same of a quick run, on the stores on which it has this: all together less than three minutes."""
    peers: tuple[System, ...] = ()
    """Which are measured beside ours: they are installed before the clock starts."""
    only_if_asked: bool = False
    """Not a part of a run of everything, which is to end within 45 minutes."""

    def parts(self, stores: Sequence[str], *, quick: bool) -> list[str]:
        """On which stores to run it, of those that were chosen."""
        wanted = [
            store
            for store in self.seconds
            if store in (*stores, ALL_STORES) or (store == NO_STORE and set(stores) == set(STORES))
        ]
        return [store for store in wanted if store in self.quick] if quick else wanted

    def why_not(self, stores: Sequence[str], *, quick: bool) -> str:
        """Why there is nothing to run on these stores, and what to do; empty if there is."""
        if self.parts(stores, quick=quick):
            return ""
        if not self.parts(stores, quick=False):
            only = "runs on " + ", ".join(self.seconds)
            if NO_STORE in self.seconds:
                only = "has no store and runs with all: leave out STORE"
            return f"{self.name} {only}"
        if not self.quick:
            return f"{self.name} takes too long for a quick run: leave out QUICK"
        return f"{self.name} runs on {', '.join(self.quick)} in a quick run: choose that, or leave out QUICK"

    def environments(self, store: str) -> list[str]:
        """Those of its peers on this store."""
        stores = STORES if store == ALL_STORES else (store,)
        return [
            peer.environment
            for each in stores
            for peer in on(each, *self.peers)
            if peer.environment is not None
        ]


def chosen(names: Sequence[str] | None) -> list[Scenario]:
    """Those with these names; without names, a run of everything."""
    if names is None:
        return [one for one in SCENARIOS if not one.only_if_asked]
    return [one for one in SCENARIOS if one.name in names]


def part(scenario: str, store: str) -> str:
    """The name of a scenario on a store. What runs on all stores in one go is one part."""
    return scenario if scenario == "recovery" else f"{scenario} on {store}"


def full_run() -> list[str]:
    """The parts of a run of everything."""
    return [part(one.name, store) for one in chosen(None) for store in one.parts(STORES, quick=False)]


SCENARIOS: Final = [
    Scenario(
        "publish",
        "publishing one by one, with timer ids, in bulk",
        publish,
        {"postgres": 78, "redis": 30, "mariadb": 24, "sqlite": 30},
        {"postgres": 15, "redis": 4, "mariadb": 5, "sqlite": 7},
        DEFAULTS,
    ),
    Scenario(
        "drain",
        "draining a backlog, by kind of handler",
        drain_backlog,
        {"postgres": 200, "redis": 107, "mariadb": 77, "sqlite": 67},
        {"postgres": 18, "redis": 9, "mariadb": 5, "sqlite": 4},
        DEFAULTS,
    ),
    Scenario(
        "dispatch",
        "a drain, of FastStream alone",
        dispatch,
        {"postgres": 8, "redis": 8, "mariadb": 8, "sqlite": 8},
        {"sqlite": 1},
    ),
    Scenario(
        "pick-up",
        "from publishing to the handler, idle",
        pick_up,
        {"postgres": 29, "redis": 25, "mariadb": 21, "sqlite": 22},
        {"postgres": 11, "redis": 8, "mariadb": 6, "sqlite": 7},
        DEFAULTS,
    ),
    Scenario(
        "lateness",
        "timers, idle",
        lateness,
        {"postgres": 58, "redis": 31, "mariadb": 19, "sqlite": 19},
        {"postgres": 13, "redis": 9},
        DEFAULTS,
    ),
    Scenario(
        "lateness-beside",
        "timers of one queue while the same process drains another",
        lateness_under_load,
        {"postgres": 61, "redis": 36, "mariadb": 20, "sqlite": 16},
        {},
        (OUTBOX, PGQUEUER, TIMERS),
    ),
    Scenario(
        "future",
        "a drain beside messages of the future",
        future,
        {"postgres": 112, "redis": 24, "mariadb": 18, "sqlite": 16},
        {"postgres": 5},
        (OUTBOX,),
    ),
    Scenario(
        "steady",
        "a minute at 70 % of capacity",
        steady,
        {"postgres": 96, "redis": 77, "mariadb": 65, "sqlite": 65},
        {"postgres": 5},
        (OUTBOX, PGQUEUER, TIMERS),
    ),
    Scenario(
        "million",
        "draining a million: throughput and memory",
        million,
        {"postgres": 320, "redis": 35, "mariadb": 46, "sqlite": 26},
        {"postgres": 2},
        (OUTBOX, PGQUEUER),
    ),
    Scenario(
        "idle",
        "what twenty idle subscribers cost",
        idle,
        {"postgres": 34, "redis": 67, "mariadb": 23, "sqlite": 23},
        {"mariadb": 8},
        DEFAULTS,
    ),
    Scenario("recovery", "a process that is killed", recovery, {ALL_STORES: 82}, {}, DEFAULTS),
    Scenario(
        "takeover",
        "workers that only pause, by lease",
        takeover,
        {"postgres": 70},
        {},
        only_if_asked=True,
    ),
    Scenario(
        "snapshot",
        "an old snapshot, held for two minutes",
        snapshot,
        {"postgres": 306, "mariadb": 153},
        {"postgres": 9},
        (OUTBOX,),
    ),
    Scenario(
        "keys",
        "other ordering keys past a blocked one",
        keys,
        {"postgres": 4, "redis": 4, "mariadb": 7, "sqlite": 3},
        {"sqlite": 0.5},
    ),
    Scenario(
        "operating",
        "read commands on a full store, and a drain beside them",
        operating,
        {"postgres": 450, "redis": 500, "mariadb": 600, "sqlite": 450},
        {},
        only_if_asked=True,
    ),
    Scenario(
        "ten-million",
        "a drain beside ten million messages of the future",
        ten_million,
        {"redis": 220, "mariadb": 115, "sqlite": 40},
        {},
        only_if_asked=True,
    ),
    Scenario("parameter", "what asking for the message costs", parameter, {NO_STORE: 15}, {NO_STORE: 1}),
    Scenario("year", "a year of virtual time in a test", year, {NO_STORE: 5}, {NO_STORE: 0.5}),
]
