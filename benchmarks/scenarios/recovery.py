"""How long a message of a process that was killed waits until another handles it."""

from __future__ import annotations

import asyncio
import time

from benchmarks.child import ChildFailed
from benchmarks.lab import Bench, Lab
from benchmarks.results import Table
from benchmarks.scenarios.draining import QUEUE
from benchmarks.systems import DEFAULTS, OURS, on

CASE = "after SIGKILL, at defaults"
PATIENCE_SECONDS = 75.0


async def recovery(lab: Lab, _store: str) -> None:
    """From SIGKILL to the first line of the handler in another process, on all stores at once: they only wait."""
    await asyncio.gather(*(_on(lab, store) for store in lab.stores))


async def _on(lab: Lab, store: str) -> None:
    table = Table("recovery", CASE, store, "s", less_is_better=True)
    lab.results.tables.append(table)
    try:
        async with lab.benches(on(store, OURS, *DEFAULTS), store, processes=2) as pairs:
            table.order(pair.label for pair in pairs)
            await asyncio.gather(*(_recovered(lab, table, pair) for pair in pairs))
    except Exception as error:  # noqa: BLE001 - noted in the results; the other stores go on
        lab.failed(f"recovery on {store}", error)


async def _recovered(lab: Lab, table: Table, pair: Bench) -> None:
    victim, heir = pair.children
    try:
        await victim.ask("start", handlers={QUEUE: "hang"})
        await heir.ask("fill", queue=QUEUE, count=1)
        taken = await victim.wait(QUEUE, 1, patience=30)
        if not taken["count"]:
            raise ChildFailed(f"{pair.label}: nothing was taken")
        victim.kill()
        killed = time.time()
        await heir.ask("start", handlers={QUEUE: "typed"})
        again = await heir.wait(QUEUE, 1, patience=PATIENCE_SECONDS)
        if again["count"]:
            table.row(pair.label).values.append(again["first"] - killed)
        else:
            table.row(pair.label).note = f"not within {PATIENCE_SECONDS:.0f} s"
    except Exception as error:  # noqa: BLE001 - noted in the results; the other systems go on
        table.row(pair.label).note = "failed"
        lab.failed(f"recovery on {pair.server.name}, {pair.label}", error)
