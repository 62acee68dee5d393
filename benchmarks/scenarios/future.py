"""Draining beside a great many messages that are not due yet."""

from __future__ import annotations

from contextlib import AsyncExitStack

from benchmarks.lab import Bench, Lab, in_turn
from benchmarks.results import Table
from benchmarks.scenarios.draining import QUEUE, drained
from benchmarks.systems import OURS_QUIET, OUTBOX_BEST, System, on

NONE, MILLION, TEN_MILLION = "none", "1,000,000", "10,000,000"
LATER_SECONDS = 30 * 86_400.0
CASE = "drain of a typed handler"


async def future(lab: Lab, store: str) -> None:
    """Each amount in a database of its own, so that all can be drained in turn.

    Ten million only for Nightmail on Postgres: a peer would need more than the time of the whole run to publish them.
    On SQL databases ours publishes a tenth of them, and the server copies the rest: MariaDB takes minutes otherwise.
    """
    million = lab.choose(1_000_000, 20_000)
    table = Table("future", CASE, store, "messages/s")
    if million != 1_000_000:
        table.note = f"{million:,} instead of 1,000,000, {10 * million:,} instead of 10,000,000"
    plan: list[tuple[System, str]] = []
    for system in on(store, OURS_QUIET, *lab.choose([OUTBOX_BEST], [])):
        plan += [(system, NONE), (system, MILLION)]
        if system is OURS_QUIET and store == "postgres":
            plan.append((system, TEN_MILLION))
    async with AsyncExitStack() as stack:
        ready: list[tuple[Bench, str]] = []
        for system, amount in plan:
            for bench in await stack.enter_async_context(lab.benches([system], store)):
                lab.say(f"{bench.label}: publishing {amount} future messages")
                await _fill(bench, amount, million)
                ready.append((bench, amount))
        lab.results.tables.append(table)
        for number in range(lab.rounds):
            for bench, amount in in_turn(ready, number):
                lab.say(f"{bench.label} beside {amount}")
                table.row(row(bench.label, amount)).values.append(await drained(lab, bench, "typed"))


async def _fill(bench: Bench, amount: str, million: int) -> None:
    if amount == NONE:
        return
    copies = 10 if bench.system is OURS_QUIET and bench.server.name != "redis" else 1
    await bench.child.ask("fill", queue=QUEUE, count=million // copies, after=LATER_SECONDS, within=900)
    if amount == TEN_MILLION:
        copies *= 10
    if copies > 1:
        await bench.server.multiply(bench.url, "nightmail_messages", copies)


def row(system: str, amount: str) -> str:
    """The name of a system beside so many."""
    return f"{system}, beside {amount}"
