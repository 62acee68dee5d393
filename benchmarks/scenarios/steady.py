"""A steady stream at 70 per cent of what a system can drain: how long each message takes from end to end."""

from __future__ import annotations

from benchmarks.child import ChildFailed
from benchmarks.lab import Bench, Lab
from benchmarks.results import Course, Table
from benchmarks.scenarios.draining import QUEUE, consuming, drained
from benchmarks.systems import OURS_QUIET, OUTBOX_BEST, PGQUEUER_BEST, TIMERS_BEST, on

SHARE = 0.7
STEP_SECONDS = 0.02
FULL_SECONDS, PEERS_SECONDS = 60.0, 10.0
WANTED, RATE, BEHIND = "wanted", "rate", "publisher behind, most"
TAILS = ("p50", "p99")
CASES = (WANTED, RATE, BEHIND, *TAILS)


async def steady(lab: Lab, store: str) -> None:
    """A minute for ours, a sixth of one for peers. The publisher is a process of its own."""
    tables = {
        case: Table(
            *("steady", case, store, "messages/s" if case in (WANTED, RATE) else "ms"),
            less_is_better=case not in (WANTED, RATE),
        )
        for case in CASES
    }
    lab.results.tables.extend(tables.values())
    most = Table("steady", "most", store, "ms", less_is_better=True)
    systems = on(store, OURS_QUIET, *lab.choose([OUTBOX_BEST, PGQUEUER_BEST, TIMERS_BEST], []))
    async with lab.benches(systems, store, processes=2) as pairs:

        async def worst(pair: Bench) -> float:
            seconds = lab.choose(FULL_SECONDS if pair.system is OURS_QUIET else PEERS_SECONDS, 2.5, 0.5)
            bench = Bench(pair.system, pair.server, pair.url, pair.children[:1], pair.sizes)
            rate = SHARE * await drained(lab, bench, "typed")
            consumer, publisher = pair.children
            async with consuming([consumer], {QUEUE: "typed"}):
                sent = await publisher.ask(
                    "pace",
                    queue=QUEUE,
                    rate=rate,
                    seconds=seconds,
                    step=STEP_SECONDS,
                    within=seconds * 4 + 60,
                )
                await consumer.wait(QUEUE, sent["count"], patience=120)
                report = await consumer.ask("report", queue=QUEUE)
            if report["count"] < sent["count"]:
                raise ChildFailed(f"{pair.label}: {report['count']} of {sent['count']} came")
            tables[WANTED].row(pair.label).values.append(rate)
            tables[RATE].row(pair.label).values.append(sent["count"] / sent["seconds"])
            tables[BEHIND].row(pair.label).values.append(sent["behind"] * 1000)
            for case in TAILS:
                tables[case].row(pair.label).values.append(report["late"][case] * 1000)
            if seconds != FULL_SECONDS:
                for each in (*tables.values(), most):
                    each.row(pair.label).note = f"{seconds:g} s instead of {FULL_SECONDS:.0f}"
            begun = report["seconds"][0]["at"]
            lab.results.courses.append(
                Course(
                    "steady",
                    pair.label,
                    store,
                    "ms",
                    [second["at"] - begun for second in report["seconds"]],
                    {case: [second[case] * 1000 for second in report["seconds"]] for case in TAILS},
                )
            )
            return float(report["late"]["max"] * 1000)

        await lab.interleave(most, pairs, worst, rounds=1)
