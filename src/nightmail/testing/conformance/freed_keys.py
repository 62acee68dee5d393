"""Freeing an ordering key always rings.

Whether another message waits for the key cannot be seen: one may commit after the statement that frees the key and
before the commit that makes it visible. It rang when the key was still taken, and nothing rings for it later.
"""

from __future__ import annotations

import asyncio

import pytest

from nightmail.outcome import Dead, Done, Outcome, Retry
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    QUEUE,
    claim_all,
    claim_bodies,
    claim_one,
    message,
    needs,
    settle_one,
    timer,
)
from nightmail.testing.conformance.harness import Harness
from nightmail.testing.conformance.wakeup import listening

KEY = "customer-7"


class FreedKeysConformance:
    """Wake-ups for the next in a key's line."""

    @needs("pushes_wakeups", "transactions", "concurrent_writers")
    async def test_one_published_between_the_ack_of_its_predecessor_and_the_commit_is_rung_for(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        await other.publish(message(b"first", ordering_key=KEY))
        first = await claim_one(other)
        async with listening(store, other, QUEUE) as ear:
            async with harness.transaction() as transaction:
                await other.ack([first], transaction=transaction)
                await other.publish(message(b"second", ordering_key=KEY))
                # It rang on publish, and a claim now finds its key taken.
                await ear.catch_up()
                assert await claim_all(store) == []
                ear.forget()

            assert await ear.rang()
            assert await claim_bodies(store) == [b"second"]

    @needs("pushes_wakeups", "transactions", "concurrent_writers")
    async def test_one_published_between_the_cancelling_of_its_predecessor_and_the_commit_is_rung_for(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        await self._started_timer(other)
        async with listening(store, other, QUEUE) as ear:
            async with harness.transaction() as transaction:
                assert await other.cancel(QUEUE, "first", transaction=transaction)
                await self._published_meanwhile(store, other)
                await ear.catch_up()
                ear.forget()

            assert await ear.rang()
            assert await claim_bodies(store) == [b"second"]

    @needs("pushes_wakeups", "transactions", "concurrent_writers")
    async def test_one_published_before_its_queue_is_emptied_for_good_is_rung_for(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        await self._started_timer(other)
        async with listening(store, other, QUEUE) as ear:
            async with harness.transaction() as transaction:
                assert await other.cancel_all(QUEUE, transaction=transaction) == 1
                await self._published_meanwhile(store, other)
                await ear.catch_up()
                ear.forget()

            assert await ear.rang()
            assert await claim_bodies(store) == [b"second"]

    @needs("pushes_wakeups", "transactions", "concurrent_writers")
    @pytest.mark.parametrize("key", [KEY, "another", None])
    async def test_one_published_between_the_replacing_of_its_predecessor_and_the_commit_is_rung_for(
        self, store: FullStore, other: FullStore, harness: Harness, key: str | None
    ) -> None:
        # Not started: with the same key it keeps its place, but it is out of the line for an hour.
        await other.publish(timer("first", b"first", ordering_key=KEY))
        async with listening(store, other, QUEUE) as ear:
            async with harness.transaction() as transaction:
                await other.publish(
                    timer("first", b"later", ordering_key=key, due=HOUR, on_conflict="replace"),
                    transaction=transaction,
                )
                await self._published_meanwhile(store, other)
                await ear.catch_up()
                ear.forget()

            assert await ear.rang()
            assert await claim_bodies(store) == [b"second"]

    @needs("pushes_wakeups", "transactions", "concurrent_writers")
    async def test_one_published_after_the_replacing_of_one_that_was_waited_for_is_rung_for(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        async with listening(store, other, QUEUE) as ear:
            async with harness.transaction() as replacing:
                async with harness.transaction() as transaction:
                    await other.publish(timer("first", b"first", ordering_key=KEY), transaction=transaction)
                    # Begins before the message that it replaces is committed.
                    later = timer("first", b"later", due=HOUR, on_conflict="replace")
                    waiting = asyncio.create_task(other.publish(later, transaction=replacing))
                    await asyncio.sleep(0.1)
                await waiting
                await self._published_meanwhile(store, other)
                await ear.catch_up()
                ear.forget()

            assert await ear.rang()
            assert await claim_bodies(store) == [b"second"]

    @needs("pushes_wakeups", "transactions", "concurrent_writers")
    async def test_one_published_between_the_rescheduling_of_its_predecessor_and_the_commit_is_rung_for(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        await other.publish(timer("first", b"first", ordering_key=KEY))
        async with listening(store, other, QUEUE) as ear:
            async with harness.transaction() as transaction:
                assert await other.reschedule(QUEUE, "first", HOUR, transaction=transaction)
                await self._published_meanwhile(store, other)
                await ear.catch_up()
                ear.forget()

            assert await ear.rang()
            assert await claim_bodies(store) == [b"second"]

    @pytest.mark.parametrize(
        "outcome", [pytest.param(Done(), id="done"), pytest.param(Dead("rejected"), id="dead")]
    )
    async def test_the_end_of_a_message_rings_though_nothing_waits_for_its_key(
        self, store: FullStore, sender: FullStore, outcome: Outcome
    ) -> None:
        await sender.publish(message(ordering_key=KEY))
        head = await claim_one(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, head, outcome)

            assert await ear.rang()

    async def test_cancelling_rings_though_nothing_waits_for_the_key(
        self, store: FullStore, sender: FullStore, clock: ManualClock
    ) -> None:
        await sender.publish(timer("head", ordering_key=KEY))
        await claim_one(sender, lease=LEASE)
        clock.advance(LEASE)
        async with listening(store, sender, QUEUE) as ear:
            assert await sender.cancel(QUEUE, "head")

            assert await ear.rang()

    async def test_moving_the_first_of_a_key_beyond_the_minute_rings(
        self, store: FullStore, sender: FullStore
    ) -> None:
        await sender.publish(timer("first", ordering_key=KEY))
        async with listening(store, sender, QUEUE) as ear:
            assert await sender.reschedule(QUEUE, "first", HOUR)

            assert await ear.rang()

    async def test_replacing_the_first_of_a_key_by_one_beyond_the_minute_rings(
        self, store: FullStore, sender: FullStore
    ) -> None:
        await sender.publish(timer("first", ordering_key=KEY))
        async with listening(store, sender, QUEUE) as ear:
            await sender.publish(timer("first", ordering_key=KEY, due=HOUR, on_conflict="replace"))

            assert await ear.rang()

    async def test_the_end_of_a_message_without_a_key_does_not_ring(
        self, store: FullStore, sender: FullStore
    ) -> None:
        await sender.publish(message())
        delivery = await claim_one(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, delivery, Done())

            assert await ear.stayed_silent()

    async def _started_timer(self, store: FullStore) -> None:
        """A timer that holds its key while it waits for its next attempt."""
        await store.publish(timer("first", b"first", ordering_key=KEY))
        await settle_one(store, await claim_one(store), Retry(HOUR))

    async def _published_meanwhile(self, store: FullStore, other: FullStore) -> None:
        await other.publish(message(b"second", ordering_key=KEY))
        assert await claim_all(store) == []
