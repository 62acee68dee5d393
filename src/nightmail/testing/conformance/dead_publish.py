"""A dead letter handler publishes under the dead letter's lease, as any handler does under its message's."""

from __future__ import annotations

import pytest

from nightmail.errors import LeaseLost
from nightmail.outcome import Done, WriteResult
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    LEASE,
    QUEUE,
    bodies,
    bury,
    claim_letter,
    claim_one,
    message,
    needs,
    promptly,
    running_timer,
    settle_one,
    stored,
    timer,
)
from nightmail.testing.conformance.harness import Harness


class DeadPublishConformance:
    """`publish(own=)` with a dead letter in hand."""

    async def test_a_publish_under_a_held_letter_is_stored(self, store: FullStore) -> None:
        await bury(store, timer("reminder", b"dead"))
        letter = await claim_letter(store)

        await stored(store, message(b"plain"), own=letter)
        await stored(store, timer("reminder", b"named"), own=letter)

        assert sorted(bodies(await store.peek(QUEUE))) == [b"named", b"plain"]
        assert await settle_one(store, letter, Done()) is WriteResult.WRITTEN

    async def test_a_publish_under_a_lost_letter_stores_nothing(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message(b"dead"))
        lost = await claim_letter(store)
        clock.advance(LEASE)
        await claim_letter(store)

        for late in (message(b"plain"), timer("reminder"), timer("reminder", on_conflict="replace")):
            with pytest.raises(LeaseLost):
                await store.publish(late, own=lost)

        assert await store.peek(QUEUE) == []

    async def test_a_letter_is_not_taken_for_the_message_of_the_same_id(self, store: FullStore) -> None:
        await bury(store, message(b"dead"))
        letter = await claim_letter(store)
        running = await running_timer(store, "reminder", b"running")

        # Not a re-arm: another delivery holds the owner of the timer id.
        assert await store.publish(timer("reminder", b"skipped"), own=letter) is None

        assert await settle_one(store, running, Done()) is WriteResult.WRITTEN
        assert await store.peek(QUEUE) == []

    @needs("transactions")
    async def test_a_letter_fences_a_publish_in_a_transaction(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await bury(store, message(b"dead"))
        lost = await claim_letter(store)
        clock.advance(LEASE)
        held = await claim_letter(store)

        async with promptly(), harness.transaction() as transaction:
            with pytest.raises(LeaseLost):
                await store.publish(message(b"late"), transaction=transaction, own=lost)
        async with promptly(), harness.transaction() as transaction:
            await stored(store, message(b"in time"), transaction=transaction, own=held)

        assert (await claim_one(store)).body == b"in time"
