"""Draining a backlog of ready messages, through handlers of each kind."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.lab import Bench, Lab
from benchmarks.results import Table
from benchmarks.scenarios.draining import (
    FAST,
    FEW,
    MANY,
    Meter,
    drain,
    drained,
    fill,
    work_off,
)
from benchmarks.systems import (
    BEST,
    DEFAULTS,
    OURS,
    OURS_QUIET,
    PGQUEUER_BEST,
    System,
    by_hand,
    on,
)

DEFAULT, TYPED, PLAIN = "typed handler, all defaults", "typed handler", "plain engine handler"
BATCH, SYNC = "batch handler of 100", "sync handler"
ONE, TWO = "typed handler, 1 process in the same rounds", "typed handler, 2 processes"
BY_TWO = {kind: f"{case}, 2 processes" for kind, case in (("plain", PLAIN), ("batch", BATCH), ("sync", SYNC))}
"""By kind of handler, for ours alone: peers are compared with two processes and a typed handler."""
ROUNDS = {"sync": 1}
"""Of kinds of handlers that have fewer than the rest: what a thread takes hardly differs between rounds."""
ROUNDS_BY_TWO = {"plain": 2, "batch": 2, "sync": 1}
TRIPS = "transactions for each message"
PROCESSOR = "processor time for each message, {case}"
EXPLAINED = (TYPED, PLAIN, BATCH)
"""The cases with one process whose processor time is told."""


async def drain_backlog(lab: Lab, store: str) -> None:
    """All systems of a store at once in their processes, and in turn at work."""
    hand = by_hand(store)
    cases: dict[str, tuple[str, list[System]]] = {
        DEFAULT: ("typed", on(store, OURS, *DEFAULTS)),
        TYPED: ("typed", on(store, OURS_QUIET, *BEST)),
        PLAIN: ("plain", on(store, OURS_QUIET, PGQUEUER_BEST)),
        BATCH: ("batch", on(store, OURS_QUIET, hand)),
        SYNC: ("sync", on(store, OURS_QUIET, *BEST)),
    }
    systems = on(store, OURS, OURS_QUIET, *DEFAULTS, *BEST, hand)
    if lab.tiny:
        cases, systems = {BATCH: ("batch", [OURS_QUIET, hand])}, [OURS_QUIET, hand]
    async with lab.benches(systems, store) as benches:
        for case, (kind, those) in cases.items():
            processor = _processor_table(case, store)

            async def rate(bench: Bench, kind: str = kind, processor: Table = processor) -> float:
                meter = Meter()
                rate = await drained(lab, bench, kind, meter)
                _add(processor, bench, meter)
                return rate

            chosen = [bench for bench in benches if bench.system in those]
            await lab.interleave(Table("drain", case, store, "messages/s"), chosen, rate, ROUNDS.get(kind))
            if case in EXPLAINED and processor.rows:
                lab.results.tables.append(processor)
        if store != "sqlite":
            chosen = [bench for bench in benches if bench.system in cases[TYPED][1]]
            table = Table("drain", TRIPS, store, "", less_is_better=True)
            await lab.interleave(table, chosen, lambda bench: _trips(lab, bench), rounds=1)
        sizes = {bench.label: bench.sizes for bench in benches}
    if not lab.tiny:
        # A quick run has two processes with a typed handler only.
        await _by_two(lab, store, lab.choose(sizes.get(OURS_QUIET.label, {}), {}))


async def _by_two(lab: Lab, store: str, sizes: Mapping[str, int]) -> None:
    """One process and two in turn, for what the second one adds; and ours with two and each other kind of handler.

    Those have the backlog of one process, which these are the sizes of.
    """
    systems = on(store, OURS_QUIET, *lab.choose(BEST, ()))
    table = Table("drain", TWO, store, "messages/s")
    alone = Table("drain", ONE, store, "messages/s")
    processor = _processor_table(TWO, store)
    lab.results.tables.append(alone)
    async with lab.benches(systems, store, processes=2) as pairs:

        async def both(bench: Bench) -> float:
            one = Bench(bench.system, bench.server, bench.url, bench.children[:1], bench.sizes)
            rate = await drained(lab, one, "typed")
            alone.row(bench.label).values.append(rate)
            meter = Meter()
            rate = await drain(bench, "typed", 2 * bench.sizes["typed"], meter)
            _add(processor, bench, meter)
            return rate

        await lab.interleave(table, pairs, both)
        if processor.rows:
            lab.results.tables.append(processor)
        ours = [bench for bench in pairs if bench.system is OURS_QUIET]
        for kind, case in BY_TWO.items():
            if kind not in sizes:
                continue  # It failed with one process, which is noted.

            async def rate(bench: Bench, kind: str = kind) -> float:
                # Neither process has handled anything in this way yet.
                if kind not in bench.sizes:
                    bench.sizes[kind] = sizes[kind]
                    await drain(bench, kind, MANY if kind in FAST else FEW)
                return await drain(bench, kind, bench.sizes[kind])

            await lab.interleave(
                Table("drain", case, store, "messages/s"), ours, rate, lab.choose(ROUNDS_BY_TWO[kind], 1)
            )


def _processor_table(case: str, store: str) -> Table:
    """What a drain takes of the system's processes and of the server: why it is no faster, and what a second adds."""
    return Table("drain", PROCESSOR.format(case=case), store, "µs", less_is_better=True)


def _add(table: Table, bench: Bench, meter: Meter) -> None:
    """One round of a system."""
    itself = "its process" if len(bench.children) == 1 else "its processes"
    if meter.own is not None:
        table.row(f"{bench.label}: {itself}").values.append(meter.own)
    if meter.server is not None:
        table.row(f"{bench.label}: the server").values.append(meter.server)


async def _trips(lab: Lab, bench: Bench) -> float:
    """Transactions (on Redis: requests) for each message, starting and stopping included."""
    size = bench.sizes.get("typed", 1000)
    await fill(bench, size)
    before = await bench.server.requests(bench.url) or 0
    await work_off(bench, "typed", size)
    return ((await bench.server.requests(bench.url) or 0) - before) / size
