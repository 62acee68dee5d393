"""What the broker may cost the server: connections, and transactions per message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import asyncpg
import pytest

from nightmail import OutboxBroker
from nightmail.outcome import WriteResult
from nightmail.store import Settlement
from tests.broker.support import PATIENCE
from tests.counters.baseline import at_most

MESSAGES: Final = 3000


async def asked(url: str, question: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(question))
    finally:
        await connection.close()


@pytest.mark.parametrize("subscribers", [1, 10])
async def test_the_number_of_connections_does_not_grow_with_the_subscribers(
    postgres_url: str, subscribers: int
) -> None:
    broker = OutboxBroker(postgres_url, create_tables=True, logger=None, lease_ttl_seconds=5)
    all_run, go_on = asyncio.Barrier(subscribers + 1), asyncio.Event()

    async def take(body: str) -> None:
        if body == "stay":
            await all_run.wait()
            await go_on.wait()

    queues = [f"queue-{number}" for number in range(subscribers)]
    for queue in queues:
        broker.subscriber(queue)(take)
    await broker.start()
    counting = (
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and application_name like 'nightmail%'"
    )
    declared = int(broker.store.capabilities.connections)

    async def publish() -> None:
        for queue in queues:
            await broker.publish_batch("go", "stay", queue=queue)
        await broker.publish("later", queues[0], timer_id="later", activate_in=3600)

    await publish()
    async with asyncio.timeout(PATIENCE):
        await all_run.wait()
        # Each is opened when first needed; the keeper's with the first renewal, the timers' with the first.
        while await asked(postgres_url, counting) < declared:  # noqa: ASYNC110 - only the server knows
            await asyncio.sleep(0.05)
        # One that is too many may be opened last: so everything is done once more.
        await publish()
        await all_run.wait()
    count = await asked(postgres_url, counting)
    go_on.set()
    await broker.stop()

    at_most("a broker on postgres, 1 or 10 subscribers", "connections", count)
    assert count == declared
    assert await asked(postgres_url, counting) == 0


async def test_a_message_under_load_costs_a_small_part_of_a_transaction(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = OutboxBroker(postgres_url, create_tables=True, logger=None)
    handled, all_handled = 0, asyncio.Event()

    @broker.subscriber("q")
    async def take(body: int) -> None:
        nonlocal handled
        handled += 1
        if handled == MESSAGES:
            all_handled.set()

    async with broker:
        for start in range(0, MESSAGES, 500):
            await broker.publish_batch(*range(start, start + 500), queue="q")
    # A connection's transactions are in the statistics once it is closed: here and below all are.
    counting = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    before = await asked(postgres_url, counting)
    settle = broker.store.settle

    async def settle_at_leisure(settlements: Sequence[Settlement]) -> list[WriteResult]:
        # As a server that is slow compared with the handlers, whatever the machine: else a slow process settles sooner
        # what it has, in smaller batches.
        seen = -1
        while seen != handled:
            seen = handled
            for _ in range(100):
                await asyncio.sleep(0)
        return await settle(settlements)

    monkeypatch.setattr(broker.store, "settle", settle_at_leisure)
    await broker.start()
    async with asyncio.timeout(60):
        await all_handled.wait()
    await broker.stop()
    spent = await asked(postgres_url, counting) - before

    at_most("a message under load on postgres", "transactions", spent / MESSAGES)
