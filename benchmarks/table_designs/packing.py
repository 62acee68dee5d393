"""How rows lie on a page: how much must stay free for a claim to be a HOT update, and the order of the columns.

A claimed row is longer than a free one by its token and its lease, and both are on the page until one is pruned.
"""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from benchmarks.table_designs.designs import C50, C50_APART, Design
from benchmarks.table_designs.load import EVERYTHING, open_table
from benchmarks.table_designs.report import print_table

_BATCH = 500
_BODIES = (20, 150, 500, 1_500)
_FILLFACTORS = (40, 45, 50, 60, 70, 90)


async def run(url: str, *, messages: int) -> None:
    """Claim `messages` once for each body, fillfactor and order."""
    rows = []
    for body in _BODIES:
        row = [f"{body:,}"]
        for fillfactor in _FILLFACTORS:
            hot, size, _ = await _claim(url, replace(C50, fillfactor=fillfactor), messages, body)
            row.append(f"{hot:.0f} %, {size:,.0f}")
        rows.append(row)
    print_table(
        f"{messages:,} messages, claimed in batches of {_BATCH}: HOT, bytes of table per message",
        ["bytes of body", *(f"fillfactor {fillfactor}" for fillfactor in _FILLFACTORS)],
        rows,
    )
    rows = []
    for body in _BODIES:
        wal = [(await _claim(url, design, messages, body))[2] for design in (C50, C50_APART)]
        rows.append([f"{body:,}", *(f"{size:,.0f}" for size in wal)])
    print_table(
        "WAL bytes per claimed message, fillfactor 50",
        ["bytes of body", "written columns together", "on both sides of the body"],
        rows,
    )


async def _claim(url: str, design: Design, messages: int, body: int) -> tuple[float, float, float]:
    """How many claims in a hundred were HOT, and the bytes of table and of WAL for each."""
    async with open_table(url, design) as table:
        await table.fill(messages, start=datetime.now(UTC) - timedelta(hours=1), body=body)
        heap, _ = await table.sizes()
        before = await table.counters()
        for _ in range(messages // _BATCH):
            await table.claim(EVERYTHING, _BATCH, uuid.uuid4())
        after = await table.counters()
    return 100 * after.hot / after.updated, heap / messages, (after.wal - before.wal) / messages
