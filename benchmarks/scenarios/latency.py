"""How soon an idle consumer starts a handler: after a publish in another process, and after a timer's due time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from typing import Any

from benchmarks.adapters.tally import summarize
from benchmarks.child import Child, ChildFailed
from benchmarks.lab import Bench, Lab
from benchmarks.results import Table
from benchmarks.scenarios.draining import QUEUE, consuming, drained
from benchmarks.systems import BEST, DEFAULTS, OURS, OURS_QUIET, OUTBOX_BEST, PGQUEUER_BEST, TIMERS_BEST, on

TIMERS = "timers"
BEFORE_SECONDS = 3.0
MEDIAN, P95, P99, LEAST = "p50", "p95", "p99", "earliest"
MACHINE = "asyncio.sleep, no store"
TOGETHER = "all systems at once, for lack of time"
GAP_SECONDS = (0.6, 1.5)
"""Before each message that is picked up. SQLite is polled quickly for half a second after a write, MariaDB every eighth
of a second: with less in between, a consumer would be measured that is not idle, and peers before they back off.
"""


class _Found:
    """Tables of the median, the tail and the earliest, filled together, with the same note."""

    def __init__(self, lab: Lab, scenario: str, store: str, cases: tuple[str, ...], note: str = "") -> None:
        self._tables = {
            case: Table(scenario, case, store, "ms", less_is_better=case != LEAST, note=note)
            for case in cases
        }
        lab.results.tables.extend(self._tables.values())

    def order(self, benches: Iterable[Bench]) -> None:
        """Ours first, whichever is done first."""
        for table in self._tables.values():
            table.order(bench.label for bench in benches)

    def add(self, system: str, late: dict[str, Any]) -> None:
        keys = {MEDIAN: "p50", P95: "p95", P99: "p99", LEAST: "min"}
        for case, table in self._tables.items():
            table.row(system).values.append(late[keys[case]] * 1000)


async def pick_up(lab: Lab, store: str) -> None:
    """From just before a message is published in one process to the first line of the handler in another that has
    nothing else to do, and had not for a while.

    It is published by the system's own commit, or where there is none (faststream-outbox) in an AsyncSession, whose
    beginning and commit are then in the figure. All systems are measured at once, at random moments of their own: they
    wait most of the time.
    """
    count, (least, most) = lab.choose(20, 6, 3), GAP_SECONDS
    systems = on(store, OURS, *DEFAULTS, *BEST)
    found = _Found(lab, "pick-up", store, (MEDIAN, P95))
    async with lab.benches(systems, store, processes=2) as benches:
        found.order(benches)

        async def picked_up(bench: Bench) -> float:
            consumer, publisher = bench.children
            async with consuming([consumer], {QUEUE: "typed"}):
                await publisher.ask("now_and_then", queue=QUEUE, count=count, least=least, most=most)
                await consumer.wait(QUEUE, count, patience=30)
                late = (await consumer.ask("report", queue=QUEUE))["late"]
            if not late["count"]:
                raise ChildFailed(f"{bench.label}: nothing came")
            found.add(bench.label, late)
            return float(late["max"] * 1000)

        table = Table("pick-up", "most", store, "ms", less_is_better=True)
        await lab.at_once(table, benches, picked_up)


async def lateness(lab: Lab, store: str) -> None:
    """Handler start minus due time, for timers at random moments, with a consumer that was idle for a while before.

    Published by their own commit or in an AsyncSession, like those of `pick_up`; but that is over before they are due.
    All are idle at the same time, and the timers of one fall due after those of the other: so each has the machine to
    itself, but for what the others cost while they do nothing. While ours fall due, this process sleeps until as many
    moments: what that is late is the machine's, and in the figures of each system.
    """
    count = lab.choose(200, 40, 10)
    after, over = lab.choose((11.0, 6.0), (4.0, 3.0), (0.5, 0.5))
    systems = on(store, OURS, *DEFAULTS, *BEST) if not lab.tiny else [OURS]
    note = TOGETHER if lab.quick else ""
    found = _Found(lab, "lateness", store, (MEDIAN, P99, LEAST), note)
    async with lab.benches(systems, store) as benches:
        found.order(benches)
        # A quick run has no time for turns.
        turn = {bench.label: 0.0 if lab.quick else number * over for number, bench in enumerate(benches)}

        async def late(bench: Bench) -> float:
            async with consuming([bench.child], {TIMERS: "typed"}):
                late, _ = await _fired(bench, bench.child, count, after + turn[bench.label], over)
            found.add(bench.label, late)
            return float(late["max"] * 1000)

        table = Table("lateness", "most", store, "ms", less_is_better=True, note=note)
        _, slept = await asyncio.gather(lab.at_once(table, benches, late), _slept(count, after, over))
        found.add(MACHINE, slept)
        table.row(MACHINE).values.append(slept["max"] * 1000)


async def lateness_under_load(lab: Lab, store: str) -> None:
    """The same for timers of one queue while the same process drains another."""
    count, over = lab.choose(200, 40), lab.choose(6.0, 2.0)
    systems = on(store, OURS_QUIET, *lab.choose([OUTBOX_BEST, PGQUEUER_BEST, TIMERS_BEST], []))
    found = _Found(lab, "lateness-beside", store, (MEDIAN, P99, LEAST))
    # The timers come from another process: the one that drains would be slow to publish them.
    async with lab.benches(systems, store, processes=2) as pairs:
        found.order(pairs)

        async def late(pair: Bench) -> float:
            bench = Bench(pair.system, pair.server, pair.url, pair.children[:1], pair.sizes)
            # So many that they are not gone before the last timer: twice what is drained in the time.
            rate = await drained(lab, bench, "typed")
            backlog = int(rate * (over + BEFORE_SECONDS + 0.5) * 2)
            await bench.child.ask("fill", queue=QUEUE, count=backlog, within=600)
            await bench.server.tidy(bench.url)
            async with consuming([bench.child], {QUEUE: "typed", TIMERS: "typed"}):
                late, due = await _fired(bench, pair.children[1], count, BEFORE_SECONDS, over)
                drain = await bench.child.wait(QUEUE, None, patience=0)
            # A system may well handle its timers after all the rest: then they are late, and that is the result.
            if drain["count"] >= backlog and drain["last"] < due:
                raise ChildFailed(
                    f"{bench.label}: all {backlog} messages were drained before the last timer was due"
                )
            found.add(bench.label, late)
            return float(late["max"] * 1000)

        table = Table("lateness-beside", "most", store, "ms", less_is_better=True)
        await lab.interleave(table, pairs, late, rounds=1)


async def _fired(
    bench: Bench, publisher: Child, count: int, after: float, over: float
) -> tuple[dict[str, Any], float]:
    """How late so many timers were, published now; and when the last one was due."""
    dues = await publisher.ask("timers", queue=TIMERS, count=count, after=after, spread=over)
    await bench.child.wait(TIMERS, count, patience=after + over + 30)
    late: dict[str, Any] = (await bench.child.ask("report", queue=TIMERS))["late"]
    if late["count"] < count:
        raise ChildFailed(f"{bench.label}: {late['count']} of {count} timers came")
    return late, float(dues["last"])


async def _slept(count: int, after: float, over: float) -> dict[str, float]:
    """How late a process without a store wakes up, at moments like those of the timers."""
    begun = time.time()
    late = []
    for due in sorted(begun + after + random.random() * over for _ in range(count)):
        await asyncio.sleep(max(0.0, due - time.time()))
        late.append(time.time() - due)
    return summarize(late)
