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
TIMER, BULK = "a timer with an id", "1,000 per transaction"
HOW = {SESSION: "session", DRIVER: "driver", OWN: "own", TIMER: "timers", BULK: "bulk"}
_EVERYWHERE = [(OWN, 1), (OWN, 16), (TIMER, 1), (BULK, 1)]
_IN_TRANSACTIONS = [(SESSION, 1), (SESSION, 16), (DRIVER, 1), (DRIVER, 16)]
CASES = {
    "postgres": [*_IN_TRANSACTIONS, *_EVERYWHERE],
    "redis": _EVERYWHERE,
    "mariadb": [*_IN_TRANSACTIONS, *_EVERYWHERE],
    "sqlite": [*_IN_TRANSACTIONS, *_EVERYWHERE],
}
TIMER_NOTE = "in an AsyncSession, or by its own commit where a system knows none"


def case(what: str, publishers: int) -> str:
    """Its name in the results."""
    return what if publishers == 1 else f"{what}, {publishers} publishers"


async def publish(lab: Lab, store: str) -> None:
    """For half a second in each round. What a peer has not, such as an AsyncSession, its row says."""
    seconds = lab.choose(0.6, 0.3, 0.1)
    systems = on(store, OURS, OUTBOX, PGQUEUER, PGQUEUER_BEST, PROCRASTINATE, TIMERS, by_hand(store))
    async with lab.benches(systems if not lab.tiny else [OURS], store) as benches:
        for what, publishers in CASES[store]:

            async def rate(bench: Bench, how: str = HOW[what], publishers: int = publishers) -> float:
                answer = await bench.child.ask(
                    "publish", queue=QUEUE, how=how, publishers=publishers, seconds=seconds
                )
                return float(answer["count"] / answer["seconds"])

            able = [bench for bench in benches if _has(bench.system, what)]
            table = Table("publish", case(what, publishers), store, "messages/s")
            if what == TIMER and store == "postgres":
                table.note = TIMER_NOTE
            await lab.interleave(table, able, rate)


def _has(system: System, what: str) -> bool:
    """By hand there are neither sessions nor timers; what else is missing the system itself says."""
    return not (system.label == "by hand" and what in (SESSION, TIMER))
