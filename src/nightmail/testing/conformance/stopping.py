"""`request_stop`, and how the holder of a message hears of it."""

from __future__ import annotations

import pytest

from nightmail.outcome import Release, Retry, WriteResult
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    AT_ONCE,
    LEASE,
    claim_all,
    claim_one,
    extend_one,
    message,
    settle_one,
    stored,
    timer,
)


class StoppingConformance:
    """A running message that an operator wants stopped."""

    async def test_the_holder_is_told_by_its_next_extend_and_every_one_after(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish_batch([message(b"stopped"), message(b"runs on")])
        stopped, runs_on = await claim_all(store)

        assert await other.request_stop(stopped.id, by="ann") is True

        for _ in range(2):
            assert list(await store.extend([stopped, runs_on], LEASE)) == [
                WriteResult.STOP,
                WriteResult.WRITTEN,
            ]

    async def test_a_stop_extends_the_lease_all_the_same(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        await store.request_stop(delivery.id, by="ann")
        clock.advance(LEASE / 2)

        assert await extend_one(store, delivery) is WriteResult.STOP
        clock.advance(LEASE / 2)

        assert await claim_all(other) == []

    async def test_a_message_that_does_not_run_is_not_asked(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        waiting = await stored(store, message())
        assert await store.request_stop(waiting, by="ann") is False
        assert await store.request_stop(waiting + 1000, by="ann") is False

        delivery = await claim_one(store)
        assert await extend_one(store, delivery) is WriteResult.WRITTEN
        clock.advance(LEASE)
        assert await store.request_stop(waiting, by="ann") is False

    async def test_the_request_outlives_the_worker_that_did_not_hear_it(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        first = await claim_one(store)
        await store.request_stop(first.id, by="ann")
        clock.advance(LEASE)

        again = await claim_one(other)

        assert await extend_one(store, first) is WriteResult.LOST
        assert await extend_one(other, again) is WriteResult.STOP

    @pytest.mark.parametrize("outcome", [Release(), Retry(AT_ONCE)])
    async def test_the_request_stays_when_the_message_goes_back(
        self, store: FullStore, outcome: Release | Retry
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        await store.request_stop(delivery.id, by="ann")
        await settle_one(store, delivery, outcome)

        assert await extend_one(store, await claim_one(store)) is WriteResult.STOP

    async def test_a_message_that_replaces_a_stopped_one_is_not_stopped(self, store: FullStore) -> None:
        await store.publish(timer("reminder"))
        delivery = await claim_one(store)
        await store.request_stop(delivery.id, by="ann")
        await settle_one(store, delivery, Release())

        await store.publish(timer("reminder", b"new", on_conflict="replace"))

        assert await extend_one(store, await claim_one(store)) is WriteResult.WRITTEN

    async def test_who_asked_is_remembered(self, store: FullStore) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        assert (await store.facts(delivery.id)).stop_requested_by is None

        await store.request_stop(delivery.id, by="zoë")

        assert (await store.facts(delivery.id)).stop_requested_by == "zoë"

    async def test_asking_for_a_stop_needs_a_name(self, store: FullStore) -> None:
        with pytest.raises(ValueError, match="by"):
            await store.request_stop(1, by="")
