"""Databases whose default isolation level is not the one our statements are written for."""

from __future__ import annotations

import asyncio

import pytest

from nightmail.outcome import WriteResult
from nightmail.testing.conformance.build import message
from tests.stores.postgres.support import backends, connection, open_store
from tests.stores.support import claim, done

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_our_connections_are_at_read_committed_whatever_the_databases_default(
    postgres_url: str, level: str
) -> None:
    async with connection(postgres_url) as own:
        database = await own.fetchval("select current_database()")
        await own.execute(f"alter database \"{database}\" set default_transaction_isolation to '{level}'")
    async with open_store(postgres_url) as first, open_store(postgres_url) as second:

        async def publish(number: int) -> None:
            store = (first, second)[number % 2]
            await store.publish(message(timer_id=f"t{number % 5}", on_conflict="replace"))
            await store.publish(message(b"%d" % number, ordering_key=f"k{number % 3}"))

        async def work(number: int) -> int:
            store, taken = (first, second)[number % 2], 0
            while deliveries := await claim(store, limit=3):
                taken += len(deliveries)
                assert set(await done(store, deliveries)) == {WriteResult.WRITTEN}
            return taken

        await asyncio.gather(*(publish(number) for number in range(60)))
        await asyncio.gather(*(work(number) for number in range(6)))

        for store in (first, second):
            for lane in (
                store._runtime.lanes.claim,
                store._runtime.lanes.settle,
                store._runtime.lanes.publish,
                store._runtime.lanes.timers,
            ):
                assert (
                    await lane.run(lambda link: link.fetchval("show transaction_isolation"))
                    == "read committed"
                )
    async with connection(postgres_url) as own:
        assert await backends(own) == []
