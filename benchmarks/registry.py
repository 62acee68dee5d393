"""Every scenario: what is run on which stores, and about how long it takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.lab import Lab
from benchmarks.scenarios.dispatch import dispatch
from benchmarks.scenarios.drain import drain_backlog
from benchmarks.scenarios.future import future
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
from benchmarks.systems import STORES

NO_STORE: Final = "memory"
ALL_STORES: Final = "all"
"""In one go, on those that were chosen."""
_POSTGRES: Final = ("postgres",)


@dataclass(frozen=True)
class Scenario:
    """One thing to measure."""

    name: str
    what: str
    run: Callable[[Lab, str], Awaitable[None]]
    seconds: dict[str, float]
    """About how long a full run takes, by store: for the progress bar."""
    quick: tuple[str, ...]
    """The stores on which a quick run has it."""
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


def chosen(names: Sequence[str] | None) -> list[Scenario]:
    """Those with these names; without names, a run of everything."""
    if names is None:
        return [one for one in SCENARIOS if not one.only_if_asked]
    return [one for one in SCENARIOS if one.name in names]


def part(scenario: str, store: str) -> str:
    """The name of a scenario on a store. What runs on all stores in one go is one part."""
    return scenario if scenario == "recovery" else f"{scenario} on {store}"


SCENARIOS: Final = [
    Scenario(
        "publish",
        "publishing one by one, with timer ids, in bulk",
        publish,
        {"postgres": 140, "redis": 35, "mariadb": 30, "sqlite": 35},
        STORES,
    ),
    Scenario(
        "drain",
        "draining a backlog, by kind of handler",
        drain_backlog,
        {"postgres": 260, "redis": 92, "mariadb": 48, "sqlite": 47},
        STORES,
    ),
    Scenario(
        "dispatch",
        "a drain, of FastStream alone",
        dispatch,
        {"postgres": 10, "redis": 10, "mariadb": 10, "sqlite": 10},
        ("sqlite",),
    ),
    Scenario(
        "pick-up",
        "from publishing to the handler, idle",
        pick_up,
        {"postgres": 65, "redis": 30, "mariadb": 10, "sqlite": 10},
        STORES,
    ),
    Scenario(
        "lateness",
        "timers, idle",
        lateness,
        {"postgres": 70, "redis": 35, "mariadb": 25, "sqlite": 20},
        STORES,
    ),
    Scenario(
        "lateness-beside",
        "timers of one queue while the same process drains another",
        lateness_under_load,
        {"postgres": 60, "redis": 45, "mariadb": 25, "sqlite": 25},
        _POSTGRES,
    ),
    Scenario(
        "future",
        "a drain beside messages of the future",
        future,
        {"postgres": 250, "redis": 60, "mariadb": 45, "sqlite": 40},
        _POSTGRES,
    ),
    Scenario(
        "steady",
        "a minute at 70 % of capacity",
        steady,
        {"postgres": 115, "redis": 90, "mariadb": 25, "sqlite": 25},
        _POSTGRES,
    ),
    Scenario(
        "million",
        "draining a million: throughput and memory",
        million,
        {"postgres": 110, "redis": 110, "mariadb": 90, "sqlite": 90},
        _POSTGRES,
    ),
    Scenario(
        "idle",
        "what twenty idle subscribers cost",
        idle,
        {"postgres": 40, "redis": 70, "mariadb": 25, "sqlite": 25},
        _POSTGRES,
    ),
    Scenario("recovery", "a process that is killed", recovery, {ALL_STORES: 90}, ()),
    Scenario(
        "takeover",
        "workers that only pause, by lease",
        takeover,
        {"postgres": 70},
        (),
        only_if_asked=True,
    ),
    Scenario("snapshot", "an old snapshot, held for two minutes", snapshot, {"postgres": 155}, _POSTGRES),
    Scenario(
        "keys",
        "other ordering keys past a blocked one",
        keys,
        {"postgres": 15, "redis": 15, "mariadb": 20, "sqlite": 10},
        ("sqlite",),
    ),
    Scenario(
        "operating",
        "read commands on a full store, and a drain beside them",
        operating,
        {"postgres": 450, "redis": 500, "mariadb": 600, "sqlite": 450},
        (),
        only_if_asked=True,
    ),
    Scenario("parameter", "what asking for the message costs", parameter, {NO_STORE: 15}, (NO_STORE,)),
    Scenario("year", "a year of virtual time in a test", year, {NO_STORE: 5}, (NO_STORE,)),
]
