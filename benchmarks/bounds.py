"""The figures that are wanted, each with its bound. A run prints every one of them: held, missed, or not measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.registry import NO_STORE, chosen, part
from benchmarks.results import Results
from benchmarks.scenarios import (
    drain,
    future,
    idle,
    keys,
    latency,
    million,
    operating,
    parameter,
    recovery,
    snapshot,
    year,
)
from benchmarks.scenarios.dispatch import ALONE
from benchmarks.scenarios.publish import DRIVER, OWN, OWN_BULK, SESSION, SESSION_BULK, case
from benchmarks.statistics import Spread, holds, ratio, spread
from benchmarks.systems import (
    OURS,
    OURS_QUIET,
    OUTBOX,
    OUTBOX_BEST,
    PGQUEUER,
    PGQUEUER_BEST,
    STORES,
    TIMERS,
    TIMERS_BEST,
)

QUIET: Final = OURS_QUIET.label
HAND: Final = "by hand"
_ENGINE: Final = "docs/adr/0002-the-engine-costs-per-message.md#numbers"
_SQLITE: Final = "docs/adr/0005-sqlite-through-the-standard-library.md#numbers"
_REDIS: Final = "docs/adr/0007-redis-keys-and-scripts.md#numbers"
_PUBLISHING: Final = "docs/adr/0012-publishing.md#numbers"
_IDLE: Final = "docs/adr/0016-idle-workers-share-a-look.md#numbers"
_LEASES: Final = "docs/adr/0013-how-soon-a-dead-worker-is-replaced.md#numbers"
_FIRST_OF_A_KEY: Final = "docs/adr/0010-only-the-first-of-a-key.md#numbers"
_TABLES: Final = "docs/adr/0001-table-design.md#numbers"
_MARIADB: Final = "docs/adr/0006-mysql-driver.md#numbers"
_LOOKING: Final = "docs/command-line.md#what-looking-costs"
_DRAINS: Final = {"postgres": _ENGINE, "redis": _REDIS, "mariadb": _ENGINE, "sqlite": _SQLITE}
"""Where the store itself takes most of the time of a drain its own page; elsewhere the engine and FastStream do."""
_FUTURE: Final = {"postgres": _TABLES, "redis": _REDIS, "mariadb": _MARIADB, "sqlite": _SQLITE}
_KEYS: Final = {"postgres": _FIRST_OF_A_KEY, "redis": _REDIS, "mariadb": _FIRST_OF_A_KEY, "sqlite": _SQLITE}
"""How a claim finds its messages is each store's own matter."""
_COUNTED: Final = {"postgres": "transactions", "redis": "requests", "mariadb": "statements"}
"""What a server of each kind counts of what it was asked."""


@dataclass(frozen=True)
class Place:
    """One row of one table."""

    scenario: str
    case: str
    store: str
    system: str


@dataclass(frozen=True)
class Bound:
    """A figure, or a ratio of two, and how large or small it should be."""

    what: str
    ours: Place
    of: Place | None = None
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"
    why: str = ""
    """The section with the profile that shows what it costs, for when it is missed. Each of `BOUNDS` names one."""

    @property
    def part(self) -> str:
        """The part of a run that measures it."""
        return part(self.ours.scenario, self.ours.store)

    def judged(self, results: Results) -> Verdict:
        """What a run says about it."""
        table = results.table(self.ours.scenario, self.ours.case, self.ours.store)
        return Verdict(self, self._measured(results), "" if table is None else table.note)

    def _measured(self, results: Results) -> Spread | None:
        ours = _values(results, self.ours)
        if self.of is None:
            return spread(ours) if ours else None
        theirs = _values(results, self.of)
        found = ratio(ours, theirs)
        return None if found is None else found.times(100 if self.unit == "%" else 1)

    def __str__(self) -> str:
        side, value = ("at least", self.at_least) if self.at_most is None else ("at most", self.at_most)
        return f"{side} {value:g} {self.unit}".rstrip()


@dataclass(frozen=True)
class Verdict:
    """Whether a bound holds."""

    bound: Bound
    value: Spread | None
    note: str

    @property
    def holds(self) -> bool | None:
        """`None` when it was not measured."""
        if self.value is None:
            return None
        return holds(self.value.median, at_least=self.bound.at_least, at_most=self.bound.at_most)

    @property
    def why(self) -> str:
        """Where to read why it is missed, if it is and that is known."""
        return self.bound.why if self.holds is False else ""

    @property
    def word(self) -> str:
        """The same as a word."""
        return {True: "holds", False: "MISSED", None: "not measured"}[self.holds]


def _values(results: Results, place: Place) -> list[float]:
    return results.values(place.scenario, place.case, place.store, place.system)


def verdicts(results: Results) -> list[Verdict]:
    """One for each bound, in their order; when a part of the scenarios was asked for, for each bound of that part.

    In a run of everything a bound stays when its part is missing, which then says that it was not measured. Scenarios
    that only run if asked for are judged where they were.
    """
    return [bound.judged(results) for bound in BOUNDS if _concerns(bound, results)]


def _concerns(bound: Bound, results: Results) -> bool:
    if not results.parts or bound.part in results.parts:
        return True
    return results.everything and bound.ours.scenario in {one.name for one in chosen(None)}


def _publish(how: str, publishers: int, store: str, other: str, least: float, unit: str = "x") -> Bound:
    name = case(how, publishers)
    return Bound(
        f"{store}: publish {name}, of {other}",
        Place("publish", name, store, OURS.label),
        Place("publish", name, store, other),
        at_least=least,
        unit=unit,
        why=_REDIS if store == "redis" and publishers > 1 else _PUBLISHING,
    )


def _drain(store: str, kind: str, ours: str, other: str, least: float, unit: str = "x") -> Bound:
    return Bound(
        f"{store}: drain, {kind}, of {other}",
        Place("drain", kind, store, ours),
        Place("drain", kind, store, other),
        at_least=least,
        unit=unit,
        why=_DRAINS[store],
    )


def _most(what: str, place: Place, most: float, unit: str, why: str) -> Bound:
    return Bound(f"{place.store}: {what}", place, at_most=most, unit=unit, why=why)


def _all() -> list[Bound]:
    lateness_ms = {"postgres": 10.0, "redis": 10.0, "mariadb": 30.0, "sqlite": 10.0}
    by_hand = {"postgres": 85.0, "mariadb": 80.0, "redis": 75.0, "sqlite": 50.0}
    of_faststream = {"postgres": 60.0, "redis": 55.0, "mariadb": 45.0, "sqlite": 60.0}
    # About twice what a full run measures.
    trips = {"postgres": 0.025, "redis": 0.015, "mariadb": 0.055}
    pick_up_ms = {"postgres": 10.0, "redis": 10.0, "mariadb": 150.0}
    # SQLite has no server to ask.
    idle_a_second = {"postgres": 2.0, "redis": 2.0, "mariadb": 10.0}
    beside = "lateness-beside"
    return [
        _publish(SESSION, 1, "postgres", OUTBOX.label, 1.4),
        _publish(SESSION, 16, "postgres", OUTBOX.label, 1.4),
        _publish(DRIVER, 1, "postgres", HAND, 85, "%"),
        _publish(SESSION_BULK, 1, "postgres", OUTBOX.label, 2),
        _publish(OWN_BULK, 1, "postgres", PGQUEUER.label, 1.4),
        _publish(OWN, 1, "redis", TIMERS.label, 1.2),
        _publish(OWN, 16, "redis", TIMERS.label, 3),
        _drain("postgres", drain.DEFAULT, OURS.label, OUTBOX.label, 10),
        _drain("postgres", drain.TYPED, QUIET, OUTBOX_BEST.label, 2.5),
        _drain("postgres", drain.PLAIN, QUIET, PGQUEUER_BEST.label, 3),
        *(_drain(store, drain.BATCH, QUIET, HAND, share, "%") for store, share in by_hand.items()),
        _drain("redis", drain.DEFAULT, OURS.label, TIMERS.label, 50),
        _drain("redis", drain.TYPED, QUIET, TIMERS_BEST.label, 8),
        *(
            _most(
                "timer lateness p99, idle",
                Place("lateness", latency.P99, store, OURS.label),
                most,
                "ms",
                _IDLE,
            )
            for store, most in lateness_ms.items()
        ),
        *(
            Bound(
                f"{store}: no timer early",
                Place("lateness", latency.LEAST, store, OURS.label),
                at_least=0,
                unit="ms",
                why=_IDLE,
            )
            for store in STORES
        ),
        *(
            _most(
                "timer lateness p99 beside a drain",
                Place(beside, latency.P99, store, QUIET),
                50,
                "ms",
                _ENGINE,
            )
            for store in STORES
        ),
        *(
            Bound(
                f"{store}: drain beside none, of beside 1,000,000",
                Place("future", future.CASE, store, future.row(QUIET, future.NONE)),
                Place("future", future.CASE, store, future.row(QUIET, future.MILLION)),
                at_most=1.2,
                why=_FUTURE[store],
            )
            for store in ("redis", "mariadb", "sqlite")
        ),
        Bound(
            "postgres: drain beside none, of beside 10,000,000",
            Place("future", future.CASE, "postgres", future.row(QUIET, future.NONE)),
            Place("future", future.CASE, "postgres", future.row(QUIET, future.TEN_MILLION)),
            at_most=1.2,
            why=_FUTURE["postgres"],
        ),
        *(
            Bound(
                f"{store}: drain beside none, of beside 10,000,000",
                Place("ten-million", future.CASE, store, future.row(QUIET, future.NONE)),
                Place("ten-million", future.CASE, store, future.row(QUIET, future.TEN_MILLION)),
                at_most=1.2,
                why=_FUTURE[store],
            )
            for store in ("redis", "mariadb", "sqlite")
        ),
        Bound(
            "postgres: sent under a held snapshot",
            Place("snapshot", snapshot.SENT, "postgres", OURS.label),
            # The last ones may be sent a moment late.
            at_least=0.99 * snapshot.RATE,
            unit="a second",
            why=_TABLES,
        ),
        Bound(
            "postgres: delivered under a held snapshot",
            Place("snapshot", snapshot.DELIVERED, "postgres", OURS.label),
            at_least=100,
            unit="%",
            why=_TABLES,
        ),
        _most(
            "p99 under a held snapshot",
            Place("snapshot", snapshot.P99, "postgres", OURS.label),
            250,
            "ms",
            _TABLES,
        ),
        _most(
            "normal again after a held snapshot",
            Place("snapshot", snapshot.BACK, "postgres", OURS.label),
            10,
            "s",
            _TABLES,
        ),
        *(
            Bound(
                f"{store}: throughput after the first million, of {million.FIRST}",
                Place("million", "throughput", store, million.LAST),
                Place("million", "throughput", store, million.FIRST),
                at_least=95,
                unit="%",
                why=_ENGINE,
            )
            for store in STORES
        ),
        *(
            _most(
                "memory, draining a million",
                Place("million", million.MOST, store, OURS.label),
                100,
                "MB",
                _ENGINE,
            )
            for store in STORES
        ),
        *(
            _most(
                "memory, growth meanwhile",
                Place("million", million.GROWTH, store, OURS.label),
                10,
                "MB",
                _ENGINE,
            )
            for store in STORES
        ),
        *(
            _most(
                f"idle, 20 subscribers, {_COUNTED[store]}",
                Place("idle", idle.TRANSACTIONS, store, OURS.label),
                most,
                "a second",
                _IDLE,
            )
            for store, most in idle_a_second.items()
        ),
        *(
            _most(
                "idle, 20 subscribers, processor",
                Place("idle", idle.PROCESSOR, store, OURS.label),
                0.5,
                "% of a core",
                _IDLE,
            )
            for store in STORES
        ),
        *(
            _most(
                "idle, 20 subscribers, connections",
                Place("idle", idle.CONNECTIONS, store, OURS.label),
                5,
                "",
                _IDLE,
            )
            for store in idle_a_second
        ),
        *(
            Bound(
                f"{store}: two processes, of one",
                Place("drain", drain.TWO, store, QUIET),
                Place("drain", drain.ONE, store, QUIET),
                at_least=1.8,
                why=_ENGINE,
            )
            for store in STORES
        ),
        *(
            _most(
                "recovery after SIGKILL",
                Place("recovery", recovery.CASE, store, OURS.label),
                25,
                "s",
                _LEASES,
            )
            for store in STORES
        ),
        # Claims of the documentation that need no peer.
        *(
            Bound(
                f"{store}: drain, of FastStream alone",
                Place("dispatch", "typed handler", store, QUIET),
                Place("dispatch", "typed handler", store, ALONE),
                at_least=share,
                unit="%",
                why=_DRAINS[store],
            )
            for store, share in of_faststream.items()
        ),
        *(
            _most(
                f"drain, {_COUNTED[store]}",
                Place("drain", drain.TRIPS, store, QUIET),
                most,
                "a message",
                _ENGINE,
            )
            for store, most in trips.items()
        ),
        *(
            _most("idle pick-up p95", Place("pick-up", latency.P95, store, OURS.label), most, "ms", _IDLE)
            for store, most in pick_up_ms.items()
        ),
        *(
            Bound(
                f"{store}: other keys past a blocked one, of no blocked one",
                Place("keys", keys.CASE, store, keys.BEHIND),
                Place("keys", keys.CASE, store, keys.ELSEWHERE),
                at_least=90,
                unit="%",
                why=_KEYS[store],
            )
            for store in STORES
        ),
        *(
            _most(
                "slowest read command beside 1,000,000 waiting and 200,000 dead",
                Place("operating", operating.COMMANDS, store, operating.SLOWEST),
                2,
                "s",
                _LOOKING,
            )
            for store in STORES
        ),
        *(
            Bound(
                f"{store}: drain beside a read command every two seconds, of the same on an empty store",
                Place("operating", operating.DRAIN, store, operating.BESIDE),
                Place("operating", operating.DRAIN, store, operating.BESIDE_EMPTY),
                at_least=95,
                unit="%",
                why=_LOOKING,
            )
            for store in STORES
        ),
        Bound(
            "what our message as a parameter adds, of FastStream's",
            Place("parameter", parameter.CASE, NO_STORE, parameter.OURS),
            Place("parameter", parameter.CASE, NO_STORE, parameter.STOCK),
            at_most=100 / 3,
            unit="%",
            why=_ENGINE,
        ),
        Bound(
            "a year of virtual time in a test",
            Place("year", year.CASE, NO_STORE, "nightmail"),
            at_most=1,
            unit="s",
            why=_ENGINE,
        ),
    ]


BOUNDS: Final = _all()
