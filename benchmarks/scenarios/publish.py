"""Publishing: one message per transaction, in what the caller holds, by 1 and by 16 at once; timers; in bulk."""

from __future__ import annotations

from benchmarks.lab import Bench, Lab
from benchmarks.results import Table
from benchmarks.systems import (
    OURS,
    OUTBOX,
    PGQUEUER,
    PGQUEUER_BEST,
    PROCRASTINATE,
    TIMERS,
    System,
    by_hand,
    on,
)

QUEUE = "published"
SESSION, DRIVER, OWN = "in an AsyncSession", "in a transaction of the driver", "by its own commit"
TIMER, OWN_TIMER = "a timer with an id, in an AsyncSession", "a timer with an id, by its own commit"
OWN_BULK, SESSION_BULK = (
    "1,000 per transaction, by its own commit",
    "1,000 per transaction, in an AsyncSession",
)
HOW = {
    SESSION: "session",
    DRIVER: "driver",
    OWN: "own",
    TIMER: "session",
    OWN_TIMER: "own",
    SESSION_BULK: "session",
    OWN_BULK: "own",
}
_OWN = [(OWN, 1), (OWN, 16)]
_DRIVER = [(DRIVER, 1), (DRIVER, 16)]
_SQL = [(SESSION, 1), (SESSION, 16), *_DRIVER, *_OWN, (TIMER, 1), (OWN_TIMER, 1), (OWN_BULK, 1)]
CASES = {
    # Only here is there a peer whose thousand is part of a session.
    "postgres": [*_SQL, (SESSION_BULK, 1)],
    # Its transaction of the driver is a pipeline with MULTI.
    "redis": [*_DRIVER, *_OWN, (OWN_TIMER, 1), (OWN_BULK, 1)],
    "mariadb": _SQL,
    "sqlite": _SQL,
}


def case(what: str, publishers: int) -> str:
    """Its name in the results."""
    return what if publishers == 1 else f"{what}, {publishers} publishers"


async def publish(lab: Lab, store: str) -> None:
    """For half a second in each round. What a peer has not, such as an AsyncSession, its row says."""
    seconds = lab.choose(0.6, 0.3, 0.1)
    systems = on(store, OURS, OUTBOX, PGQUEUER, PGQUEUER_BEST, PROCRASTINATE, TIMERS, by_hand(store))
    async with lab.benches(systems if not lab.tiny else [OURS], store) as benches:
        for what, publishers in CASES[store]:

            async def rate(bench: Bench, what: str = what, publishers: int = publishers) -> float:
                answer = await bench.child.ask(
                    "publish",
                    queue=QUEUE,
                    how=HOW[what],
                    publishers=publishers,
                    seconds=seconds,
                    timers=what in (TIMER, OWN_TIMER),
                    bulk=what in (OWN_BULK, SESSION_BULK),
                )
                return float(answer["count"] / answer["seconds"])

            able = [bench for bench in benches if _has(bench.system, what)]
            table = Table("publish", case(what, publishers), store, "messages/s")
            await lab.interleave(table, able, rate)


def _has(system: System, what: str) -> bool:
    """By hand there are neither sessions nor timers, and on MariaDB and SQLite its own commit is a transaction of the
    driver: it is there once. On Redis both are the same MULTI, which stands beside each. What else is missing the
    system itself says.
    """
    if system.label != "by hand":
        return True
    return what in (DRIVER, OWN_BULK) or (what == OWN and system.stores[0] in ("postgres", "redis"))
