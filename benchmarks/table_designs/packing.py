"""How much of a page must stay free for a claim to be a HOT update, and what that costs in disk.

A claimed row is longer than a free one by its token and its lease, and both are on the page until one is pruned.
"""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from benchmarks.table_designs.designs import C50
from benchmarks.table_designs.load import EVERYTHING, open_table
from benchmarks.table_designs.report import print_table

_BATCH = 500
_BODIES = (20, 150, 500, 1_500, 10_000)
_FILLFACTORS = (40, 45, 50, 60, 70, 90)


async def run(url: str, *, messages: int) -> None:
    rows = []
    for body in _BODIES:
        cells = [await _packed(url, messages, body, fillfactor) for fillfactor in _FILLFACTORS]
        rows.append([f"{body:,}", *cells])
    print_table(
        f"{messages:,} messages, claimed in batches of {_BATCH}: HOT %, bytes of table per message",
        ["bytes of body", *(f"fillfactor {fillfactor}" for fillfactor in _FILLFACTORS)],
        rows,
    )


async def _packed(url: str, messages: int, body: int, fillfactor: int) -> str:
    design = replace(C50, name=f"c{fillfactor}", fillfactor=fillfactor)
    async with open_table(url, design) as table:
        await table.fill(messages, start=datetime.now(UTC) - timedelta(hours=1), body=body)
        heap, _ = await table.sizes()
        for _ in range(messages // _BATCH):
            await table.claim(EVERYTHING, _BATCH, uuid.uuid4())
        counted = await table.counters()
    return f"{100 * counted.hot / counted.updated:.0f} %, {heap / messages:,.0f}"
