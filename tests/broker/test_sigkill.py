"""SIGKILL, with everything at its default: another worker takes over when the lease ends, and knows when that is."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from nightmail import OutboxBroker, open_store
from nightmail.engine.settings import WorkerSettings
from nightmail.store import Claimed, FullStore

PATIENCE = 60.0
LEASE = WorkerSettings().lease


class Ahead:
    """A clock that the test sets ahead of that of the process it kills."""

    def __init__(self) -> None:
        self.by = timedelta(0)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.by


async def killed_in_its_handler(url: str) -> None:
    """A process that was killed by SIGKILL while it handled what there was."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.broker.unending", url, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"running\n"
    finally:
        process.kill()
        await process.wait()


async def look(store: FullStore) -> Claimed:
    return await store.claim(["q"], limit=1, lease=LEASE, token=uuid4())


@pytest.mark.parametrize("url", ["sqlite", "postgres", "mysql", "redis"], indirect=True)
async def test_a_worker_knows_when_it_may_take_over_from_one_that_was_killed(url: str) -> None:
    async with OutboxBroker(url, create_tables=True, logger=None) as broker:
        await broker.publish("tea", "q")
    clock = Ahead()
    store = open_store(url, clock=clock)
    await store.open()

    await killed_in_its_handler(url)
    early = await look(store)

    assert not early.deliveries
    assert early.next_in is not None
    assert early.next_in <= LEASE

    clock.by = early.next_in
    (delivery,) = (await look(store)).deliveries

    assert (delivery.deliveries, delivery.attempts) == (2, 0)
    await store.close()
