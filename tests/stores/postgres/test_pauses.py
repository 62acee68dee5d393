"""Pauses on Postgres: races between processes, and what a claim does beside them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from nightmail.outcome import Done
from nightmail.store import Claimed, Settlement
from nightmail.stores.postgres import PostgresStore
from nightmail.testing.conformance.build import HOUR, LEASE, MINUTE, QUEUE, message
from tests.stores.postgres.support import connection, open_store

pytestmark = pytest.mark.postgres

OTHER = "refunds"
LET_PROBES_THROUGH = "update nightmail_controls set until = since where automatic"
END = "update nightmail_controls set until = since where not automatic"


async def look(store: PostgresStore, *queues: str, limit: int = 100) -> Claimed:
    return await store.claim(queues or (QUEUE,), limit=limit, lease=LEASE, token=uuid4())


async def execute(url: str, statement: str) -> None:
    async with connection(url) as own:
        await own.execute(statement)


async def test_of_many_processes_that_look_at_once_one_probes(postgres_url: str) -> None:
    async with AsyncExitStack() as opened:
        stores = [await opened.enter_async_context(open_store(postgres_url)) for _ in range(6)]
        await stores[0].publish_batch([message() for _ in range(20)])
        await stores[0].pause(QUEUE, by="worker", until=HOUR, automatic=True)

        for _ in range(5):
            await execute(postgres_url, LET_PROBES_THROUGH)
            looks = await asyncio.gather(*map(look, stores))

            assert sorted((len(each.deliveries), each.probe) for each in looks) == [
                *[(0, False)] * 5,
                (1, True),
            ]


async def test_many_processes_end_a_pause_at_once_and_lose_nothing(postgres_url: str) -> None:
    async with AsyncExitStack() as opened:
        stores = [await opened.enter_async_context(open_store(postgres_url)) for _ in range(6)]
        await stores[0].publish_batch([message() for _ in range(20)])
        await stores[0].pause(QUEUE, by="ann", until=HOUR)
        await execute(postgres_url, END)

        first = await asyncio.gather(*(look(store, limit=5) for store in stores))
        rest = await look(stores[0])

        ids = [delivery.id for claimed in (*first, rest) for delivery in claimed.deliveries]
        assert (len(ids), len(set(ids))) == (20, 20)
        assert await stores[0].pauses() == []


async def test_a_probe_passes_over_a_paused_key_with_more_messages_than_a_window_shows(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store:
        await store.publish_batch([message(b"held back", ordering_key="a") for _ in range(600)])
        await store.publish(message(b"free", ordering_key="b"))
        await store.pause(QUEUE, ordering_key="a", by="ann")
        await store.pause(QUEUE, by="worker", until=HOUR, automatic=True)
        await execute(postgres_url, LET_PROBES_THROUGH)

        probe = await look(store)
        paused = await look(store)

        assert ([each.body for each in probe.deliveries], probe.probe) == ([b"free"], True)
        assert (list(paused.deliveries), paused.full) == ([], False)


async def test_a_paused_queue_with_many_keys_does_not_hold_up_another(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        # More keys than a window shows: the first message of each key is asked for, and kept for a while.
        await store.publish_batch([message(b"paused", ordering_key=f"{n % 3}") for n in range(900)])
        await store.publish_batch([message(b"paused", ordering_key=f"key {n}") for n in range(300)])
        taken = (await look(store, QUEUE, OTHER, limit=10)).deliveries
        assert taken
        await store.pause(QUEUE, by="ann")
        await store.publish_batch([message(b"free", queue=OTHER) for _ in range(3)])

        claimed = await look(store, QUEUE, OTHER, limit=10)

        assert [each.body for each in claimed.deliveries] == [b"free"] * 3
        assert not claimed.full
        await store.settle([Settlement(each, Done()) for each in taken])
        assert not (await look(store, QUEUE, OTHER)).deliveries


async def test_nothing_is_claimed_of_a_key_that_was_paused_after_its_first_message_was_read(
    postgres_url: str,
) -> None:
    async with open_store(postgres_url) as store:
        await store.publish_batch([message(b"hot", ordering_key="hot") for _ in range(600)])
        await store.publish_batch([message(ordering_key=f"key {n}") for n in range(9)])
        # Reads the first message of every key, and takes two of ten.
        taken = [(await look(store, limit=1)).deliveries[0] for _ in range(2)]
        paused = {f"key {n}" for n in range(9)} - {each.ordering_key for each in taken}
        for key in paused:
            await store.pause(QUEUE, ordering_key=key, by="ann")

        later = [each for _ in range(5) for each in (await look(store)).deliveries]

        assert paused.isdisjoint(each.ordering_key for each in later)


async def test_the_ends_of_pauses_count_for_the_next_look_beside_what_is_due(postgres_url: str) -> None:
    async with open_store(postgres_url) as store:
        await store.publish(message(due=HOUR))
        await store.pause(QUEUE, ordering_key="a", by="ann", until=MINUTE)
        await store.pause(OTHER, by="ann", until=2 * MINUTE)

        sooner, later = await look(store), await look(store, OTHER)

        assert sooner.next_in is not None
        assert later.next_in is not None
        assert sooner.next_in <= MINUTE < later.next_in <= 2 * MINUTE
