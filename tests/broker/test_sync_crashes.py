"""A process that dies between its `def` handler and the end of the message: the effect happens exactly once."""

from __future__ import annotations

import asyncio
import sys

import pytest

from nightmail import OutboxBroker
from tests.broker.sync_crashing import KILLED, MOMENTS, QUEUES
from tests.broker.sync_ledger import sync_ledger_at

PATIENCE = 60.0


async def run(url: str, queue: str, moment: str) -> int:
    """Run such a process to its end; its exit code."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.broker.sync_crashing", url, queue, moment
    )
    try:
        async with asyncio.timeout(PATIENCE):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("url", ["sqlite", "postgres", "mysql"], indirect=True)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_whenever_the_process_dies_the_effects_are_as_many_as_the_messages(
    url: str, moment: str
) -> None:
    with sync_ledger_at(url) as ledger:
        async with OutboxBroker(url, create_tables=True, logger=None) as broker:
            ledger.create()

            for queue in QUEUES:
                await broker.publish(queue, queue)
                assert await run(url, queue, moment) == KILLED
            assert await run(url, "any", "never") == 0

            assert ledger.effects() == sorted(QUEUES)
            assert await broker.stats() == {}
