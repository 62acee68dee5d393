"""When a running message owns the timer id: a new message takes it over, and the running one is superseded."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pytest

from nightmail.errors import LeaseLost, TimerExists
from nightmail.message import OnConflict
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    bodies,
    claim_all,
    claim_bodies,
    claim_one,
    extend_one,
    message,
    needs,
    running_timer,
    settle_one,
    stored,
    timer,
    timer_owner,
)
from nightmail.testing.conformance.harness import Harness, RolledBack

REPLACING: Final[tuple[OnConflict, ...]] = ("replace", "earliest", "latest")


class SupersedeConformance:
    """Publishing a timer id whose message is running elsewhere."""

    async def test_skip_against_a_running_message_stores_nothing(self, store: FullStore) -> None:
        old = await running_timer(store)

        assert await store.publish(timer("reminder", b"new")) is None

        assert await store.peek() == []
        assert await settle_one(store, old, Done()) is WriteResult.WRITTEN
        assert await claim_all(store) == []

    async def test_raise_against_a_running_message_raises(self, store: FullStore) -> None:
        old = await running_timer(store)

        with pytest.raises(TimerExists):
            await store.publish(timer("reminder", b"new", on_conflict="raise"))

        assert await store.peek() == []
        assert await settle_one(store, old, Done()) is WriteResult.WRITTEN

    async def test_a_publish_that_stored_nothing_does_not_supersede(self, store: FullStore) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new"))

        await settle_one(store, old, Release())

        assert (await claim_one(store)).superseded is False

    @pytest.mark.parametrize("policy", REPLACING)
    @pytest.mark.parametrize("due", [-HOUR, timedelta(0), HOUR], ids=["overdue", "now", "later"])
    async def test_a_new_message_takes_the_name_without_comparing_due_times(
        self, store: FullStore, clock: ManualClock, policy: OnConflict, due: timedelta
    ) -> None:
        old = await running_timer(store)

        new = await stored(store, timer("reminder", b"new", due=due, on_conflict=policy))

        assert new != old.id
        (pending,) = await store.peek(timer_id="reminder")
        assert (pending.id, pending.body, pending.attempts) == (new, b"new", 0)
        assert pending.due_at == clock.now() + max(due, timedelta(0))

    async def test_the_new_message_is_not_superseded_itself(self, store: FullStore) -> None:
        await running_timer(store)
        new = await stored(store, timer("reminder", b"new", on_conflict="replace"))

        delivery = await claim_one(store)

        assert (delivery.id, delivery.body, delivery.timer_id) == (new, b"new", "reminder")
        assert (delivery.superseded, delivery.attempts, delivery.deliveries) == (False, 0, 1)

    async def test_the_lease_of_a_superseded_message_goes_on(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new", due=HOUR, on_conflict="replace"))

        clock.advance(LEASE - MICROSECOND)
        assert await claim_all(store) == []
        assert await extend_one(store, old) is WriteResult.WRITTEN
        clock.advance(LEASE - MICROSECOND)
        assert await claim_all(store) == []

    async def test_a_superseded_message_may_end_by_done(self, store: FullStore) -> None:
        old = await running_timer(store)
        new = await stored(store, timer("reminder", b"new", on_conflict="replace"))

        assert await settle_one(store, old, Done()) is WriteResult.WRITTEN

        assert await timer_owner(store) == [(new, b"new")]
        assert await claim_bodies(store) == [b"new"]

    async def test_a_superseded_message_may_end_among_the_dead_letters(self, store: FullStore) -> None:
        old = await running_timer(store)
        new = await stored(store, timer("reminder", b"new", on_conflict="replace"))

        assert await settle_one(store, old, Dead("rejected")) is WriteResult.WRITTEN

        (letter,) = await store.dead(DeadFilter())
        assert (letter.message_id, letter.timer_id, letter.body) == (old.id, "reminder", b"old")
        assert await timer_owner(store) == [(new, b"new")]

    @pytest.mark.parametrize(
        ("outcome", "attempts"),
        [
            pytest.param(Retry(after=HOUR), 1, id="retry"),
            pytest.param(Postpone(after=HOUR), 0, id="postpone"),
            pytest.param(Release(), 0, id="release"),
        ],
    )
    async def test_whatever_brings_a_superseded_message_back_makes_it_due_at_once_and_marked(
        self, store: FullStore, outcome: Outcome, attempts: int
    ) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new", due=HOUR, on_conflict="replace"))

        assert await settle_one(store, old, outcome) is WriteResult.WRITTEN

        back = await claim_one(store)
        assert (back.id, back.body, back.timer_id) == (old.id, b"old", "reminder")
        assert (back.superseded, back.attempts) == (True, attempts)

    async def test_a_superseded_message_whose_lease_expires_comes_back_marked(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new", due=HOUR, on_conflict="replace"))
        clock.advance(LEASE)

        back = await claim_one(store)

        assert (back.id, back.superseded, back.deliveries) == (old.id, True, 2)

    async def test_a_superseded_message_that_is_dropped_leaves_the_new_one_alone(
        self, store: FullStore
    ) -> None:
        old = await running_timer(store)
        new = await stored(store, timer("reminder", b"new", due=HOUR, on_conflict="replace"))
        await settle_one(store, old, Retry())

        assert await settle_one(store, await claim_one(store), Done()) is WriteResult.WRITTEN

        assert await timer_owner(store) == [(new, b"new")]
        assert await claim_all(store) == []

    async def test_a_superseded_message_stays_superseded_when_it_comes_back_again(
        self, store: FullStore
    ) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new", due=HOUR, on_conflict="replace"))
        await settle_one(store, old, Release())
        await settle_one(store, await claim_one(store), Release())

        back = await claim_one(store)

        assert (back.id, back.superseded) == (old.id, True)

    async def test_the_name_stays_with_the_new_message_after_the_old_one_has_ended(
        self, store: FullStore
    ) -> None:
        old = await running_timer(store)
        new = await stored(store, timer("reminder", b"new", on_conflict="replace"))
        await settle_one(store, old, Done())

        assert await store.publish(timer("reminder", b"newer")) is None
        assert await store.publish(timer("reminder", b"newest", on_conflict="replace")) == new

    async def test_the_name_is_free_once_the_new_message_has_ended_though_the_old_one_still_runs(
        self, store: FullStore
    ) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new", on_conflict="replace"))
        await settle_one(store, await claim_one(store), Done())

        third = await stored(store, timer("reminder", b"third", on_conflict="raise"))

        assert await settle_one(store, old, Done()) is WriteResult.WRITTEN
        assert await timer_owner(store) == [(third, b"third")]

    async def test_two_generations_may_run_while_a_third_owns_the_timer_id(self, store: FullStore) -> None:
        first = await running_timer(store)
        await store.publish(timer("reminder", b"second", on_conflict="replace"))
        second = await claim_one(store)
        third = await stored(store, timer("reminder", b"third", due=HOUR, on_conflict="replace"))

        assert len({first.id, second.id, third}) == 3
        assert await settle_one(store, second, Done()) is WriteResult.WRITTEN
        assert await settle_one(store, first, Retry(after=HOUR)) is WriteResult.WRITTEN
        back = await claim_one(store)
        assert (back.id, back.superseded) == (first.id, True)
        assert await timer_owner(store) == [(third, b"third")]

    async def test_a_superseded_message_and_the_new_one_may_run_at_the_same_time(
        self, store: FullStore
    ) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new", on_conflict="replace"))
        new = await claim_one(store)

        assert await extend_one(store, old) is WriteResult.WRITTEN
        assert await extend_one(store, new) is WriteResult.WRITTEN

    async def test_an_ordering_key_keeps_the_superseded_message_and_the_new_one_apart(
        self, store: FullStore
    ) -> None:
        await store.publish(timer("reminder", b"old", ordering_key="k"))
        old = await claim_one(store)
        await store.publish(timer("reminder", b"new", ordering_key="k", on_conflict="replace"))

        assert await claim_all(store) == []
        await settle_one(store, old, Done())
        assert await claim_bodies(store) == [b"new"]

    async def test_the_same_name_running_in_another_queue_is_not_superseded(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"refund", queue="refunds"))
        refund = await claim_one(store, "refunds")
        await store.publish(timer("reminder", b"order", queue="orders", on_conflict="replace"))

        await settle_one(store, refund, Release())

        assert (await claim_one(store, "refunds")).superseded is False

    # ------------------------------------------------------------------ in the caller's transaction

    @needs("transactions")
    async def test_a_superseded_message_may_be_acked_in_a_transaction(
        self, store: FullStore, harness: Harness
    ) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new", on_conflict="replace"))

        async with harness.transaction() as transaction:
            await harness.write(transaction, "effect of the old")
            await store.ack([old], transaction=transaction)

        assert await harness.written() == ["effect of the old"]
        assert await claim_bodies(store) == [b"new"]

    @needs("transactions")
    async def test_two_holders_of_one_message_that_was_replaced_have_one_effect(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        stale = await running_timer(store)
        clock.advance(LEASE)
        holder = await claim_one(other)
        await store.publish(timer("reminder", b"new", due=HOUR, on_conflict="replace"))

        with pytest.raises(LeaseLost):
            async with harness.transaction() as transaction:
                await harness.write(transaction, "by the stale holder")
                await store.ack([stale], transaction=transaction)
        async with harness.transaction() as transaction:
            await harness.write(transaction, "by the holder")
            await other.ack([holder], transaction=transaction)

        assert await harness.written() == ["by the holder"]
        clock.advance(HOUR)
        assert await claim_bodies(store) == [b"new"]

    @needs("transactions")
    async def test_two_stale_holders_of_one_message_that_was_replaced_have_no_effect(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        first = await running_timer(store)
        clock.advance(LEASE)
        second = await claim_one(other)
        clock.advance(LEASE)
        await store.publish(timer("reminder", b"new", on_conflict="replace"))

        for worker, stale in ((store, first), (other, second)):
            with pytest.raises(LeaseLost):
                async with harness.transaction() as transaction:
                    await harness.write(transaction, "effect of the old")
                    await worker.ack([stale], transaction=transaction)

        assert await harness.written() == []
        assert await claim_bodies(store) == [b"new"]

    @needs("transactions")
    @pytest.mark.parametrize("policy", REPLACING)
    async def test_a_running_message_is_superseded_when_the_transaction_commits(
        self, store: FullStore, harness: Harness, policy: OnConflict
    ) -> None:
        old = await running_timer(store)

        async with harness.transaction() as transaction:
            new = await store.publish(
                timer("reminder", b"new", due=HOUR, on_conflict=policy), transaction=transaction
            )

        assert await timer_owner(store) == [(new, b"new")]
        await settle_one(store, old, Release())
        assert (await claim_one(store)).superseded is True

    @needs("transactions")
    async def test_a_running_message_is_not_superseded_when_the_transaction_rolls_back(
        self, store: FullStore, harness: Harness
    ) -> None:
        old = await running_timer(store)

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.publish(timer("reminder", b"new", on_conflict="replace"), transaction=transaction)
                raise RolledBack

        assert await store.publish(timer("reminder", b"newer")) is None
        await settle_one(store, old, Retry(after=MINUTE))
        assert await timer_owner(store) == [(old.id, b"old")]

    @needs("transactions")
    async def test_a_conflict_with_a_running_message_never_aborts_the_callers_transaction(
        self, store: FullStore, harness: Harness
    ) -> None:
        await running_timer(store)

        async with harness.transaction() as transaction:
            assert await store.publish(timer("reminder", b"new"), transaction=transaction) is None
            with pytest.raises(TimerExists):
                await store.publish(timer("reminder", on_conflict="raise"), transaction=transaction)
            await harness.write(transaction, "order 1")
            await store.publish(message(b"unnamed"), transaction=transaction)

        assert await harness.written() == ["order 1"]
        assert bodies(await store.peek()) == [b"unnamed"]
