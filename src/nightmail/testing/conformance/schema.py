"""Creating the tables, opening, closing: doing any of it twice loses nothing."""

from __future__ import annotations

import asyncio

from nightmail.outcome import Dead, Retry
from nightmail.records import DeadFilter
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    bodies,
    claim_all,
    claim_bodies,
    claim_one,
    message,
    promptly,
    settle_one,
    timer,
)
from nightmail.testing.conformance.harness import Harness


class SchemaConformance:
    """The life of a store: migrate, check, open, close."""

    # ------------------------------------------------------------------------------------ the tables

    async def test_a_migrated_store_passes_its_own_check(self, store: FullStore, other: FullStore) -> None:
        await store.check()
        await other.check()

    async def test_migrating_again_changes_nothing(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"waiting", due=MINUTE))
        await store.publish(message(b"running"))
        running = await claim_one(store)

        await store.migrate()
        await store.migrate()

        await store.check()
        assert bodies(await store.peek()) == [b"waiting"]
        assert await settle_one(store, running, Retry()) == "written"
        assert await store.publish(timer("reminder")) is None

    async def test_two_processes_may_migrate_at_the_same_time(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish(message(b"kept"))

        await asyncio.gather(store.migrate(), other.migrate())

        await store.check()
        await other.check()
        assert await claim_bodies(other) == [b"kept"]

    # ------------------------------------------------------------------------------ opening and closing

    async def test_an_open_store_answers(self, store: FullStore) -> None:
        await store.ping()

    async def test_opening_an_open_store_does_nothing(self, store: FullStore) -> None:
        await store.publish(message(b"kept"))
        running = await claim_one(store)

        await store.open()
        await store.open()

        await store.ping()
        assert await settle_one(store, running, Retry()) == "written"
        assert await claim_bodies(store) == [b"kept"]

    async def test_a_closed_store_can_be_opened_again(self, store: FullStore) -> None:
        for body in (b"first", b"second"):
            await store.close()
            await store.open()
            await store.ping()
            await store.check()
            await store.publish(message(body))
            assert await claim_bodies(store) == [body]

    async def test_closing_a_closed_store_does_nothing(self, store: FullStore) -> None:
        await store.close()
        await store.close()

        await store.open()
        await store.ping()

    async def test_closing_one_store_leaves_another_over_the_same_data_open(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish(message(b"kept"))

        await store.close()

        await other.ping()
        assert await claim_bodies(other) == [b"kept"]

    async def test_messages_names_and_counters_survive_closing_and_opening(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", b"waiting", due=HOUR))
        await store.publish_batch([message(b"retried"), message(b"dead")])
        retried, dead = await claim_all(store)
        await settle_one(store, retried, Retry(MINUTE))
        await settle_one(store, dead, Dead("rejected"))

        await store.close()
        await store.open()

        assert await store.publish(timer("reminder")) is None
        assert bodies(await store.dead(DeadFilter())) == [b"dead"]
        clock.advance(MINUTE)
        again = await claim_one(store)
        assert (again.body, again.attempts) == (b"retried", 1)
        clock.advance(HOUR)
        assert b"waiting" in await claim_bodies(store)

    async def test_a_lease_survives_closing_and_opening(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store, lease=LEASE)

        await store.close()
        await store.open()

        clock.advance(LEASE - SECOND)
        assert await claim_all(other) == []
        assert await settle_one(store, delivery, Retry()) == "written"

    async def test_what_one_process_left_another_finds(self, store: FullStore, harness: Harness) -> None:
        await store.publish(message(b"left behind"))
        await store.close()

        later = await harness.open()
        try:
            assert await claim_bodies(later) == [b"left behind"]
        finally:
            await later.close()

    async def test_a_store_is_closed_while_a_bell_still_listens(self, store: FullStore) -> None:
        async with promptly():
            with store.listen([QUEUE]):
                await store.close()
                await store.open()
                await store.ping()

    # ---------------------------------------------------------------------------------- what it can do

    async def test_a_store_tells_its_name_and_what_it_costs(self, store: FullStore) -> None:
        assert store.capabilities.name
        assert store.capabilities.connections >= 0

    async def test_an_idle_worker_looks_every_five_seconds_or_every_second(self, store: FullStore) -> None:
        assert store.look_interval in (SECOND, SECOND * 5)
