"""Draining beside a great many messages that are not due yet."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchmarks.lab import Bench, Lab, in_turn
from benchmarks.results import Table
from benchmarks.scenarios.draining import QUEUE, drained
from benchmarks.systems import OURS_QUIET, OUTBOX_BEST, System, on

NONE, MILLION, TEN_MILLION = "none", "1,000,000", "10,000,000"
LATER_SECONDS = 30 * 86_400.0
CASE = "drain of a typed handler"


async def future(lab: Lab, store: str) -> None:
    """Beside none and a million, and on Postgres beside ten million: elsewhere that takes minutes, see `ten_million`.

    Of peers up to a million: one would need more than the time of the whole run to publish ten.
    """
    plan: list[tuple[System, str]] = []
    for system in on(store, OURS_QUIET, *lab.choose([OUTBOX_BEST], [])):
        plan += [(system, NONE), (system, MILLION)]
        if system is OURS_QUIET and store == "postgres":
            plan.append((system, TEN_MILLION))
    await _measured(lab, "future", store, plan)


async def ten_million(lab: Lab, store: str) -> None:
    """Beside none and ten million, where a run of everything has no time for it."""
    await _measured(lab, "ten-million", store, [(OURS_QUIET, NONE), (OURS_QUIET, TEN_MILLION)])


async def _measured(lab: Lab, scenario: str, store: str, plan: Sequence[tuple[System, str]]) -> None:
    """Each amount in a database of its own, so that all can be drained in turn.

    Ours publishes a tenth of them or less, and the server copies the rest: MariaDB takes minutes otherwise.
    """
    million = lab.choose(1_000_000, 20_000, 2_000)
    table = Table(scenario, CASE, store, "messages/s")
    if million != 1_000_000:
        table.note = f"{million:,} instead of 1,000,000, {10 * million:,} instead of 10,000,000"
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
