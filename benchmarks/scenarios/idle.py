"""What twenty subscribers cost when there is nothing to do: transactions, processor time, connections."""

from __future__ import annotations

import asyncio

from benchmarks.lab import Bench, Lab
from benchmarks.results import Table
from benchmarks.scenarios.draining import consuming
from benchmarks.systems import BEST, DEFAULTS, OURS, on

SUBSCRIBERS = 20
REST_SECONDS, BRIEF_REST_SECONDS, QUICK_REST_SECONDS = 12.0, 6.0, 3.0
"""Postgres counts what a connection did up to ten seconds late: sooner, that would be taken for what they do idle.
A quick run has no time for that, and rests on MariaDB instead, which counts at once.
"""
TRANSACTIONS, PROCESSOR, CONNECTIONS = "transactions a second", "share of a core", "connections"


async def idle(lab: Lab, store: str) -> None:
    """After each subscriber has handled a message, and some seconds of rest."""
    queues = [f"idle-{number}" for number in range(SUBSCRIBERS)]
    transactions = Table("idle", TRANSACTIONS, store, "a second", less_is_better=True)
    connections = Table("idle", CONNECTIONS, store, "", less_is_better=True)
    lab.results.tables.extend([transactions, connections])
    async with lab.benches(on(store, OURS, *DEFAULTS, *BEST), store) as benches:
        for table in (transactions, connections):
            table.order(bench.label for bench in benches)

        async def share(bench: Bench) -> float:
            async with consuming([bench.child], dict.fromkeys(queues, "typed")):
                async with lab.another(bench) as publisher:
                    for queue in queues:
                        await publisher.ask("fill", queue=queue, count=1)
                for queue in queues:
                    await bench.child.wait(queue, 1, patience=30)
                brief = lab.choose(BRIEF_REST_SECONDS, QUICK_REST_SECONDS)
                await asyncio.sleep(REST_SECONDS if store == "postgres" else brief)
                own = await _requests(bench) - await _requests(bench)
                asked, used = await _requests(bench), bench.child.processor_seconds()
                seconds = lab.choose(15.0, 3.0)
                await asyncio.sleep(seconds)
                used = bench.child.processor_seconds() - used
                # What it took to ask is not theirs.
                spent = await _requests(bench) - asked + own
                transactions.row(bench.label).values.append(max(0.0, spent / seconds))
                connected = await bench.server.connections(bench.url) or 0
                connections.row(bench.label).values.append(float(connected))
            return 100 * used / seconds

        table = Table("idle", PROCESSOR, store, "%", less_is_better=True)
        if store == "postgres":  # It counts each database by itself, so that all can rest at once.
            await lab.at_once(table, benches, share)
        else:
            await lab.interleave(table, benches, share, rounds=1)
        if store == "sqlite":
            lab.results.tables.remove(transactions)
            lab.results.tables.remove(connections)


async def _requests(bench: Bench) -> int:
    return await bench.server.requests(bench.url) or 0
