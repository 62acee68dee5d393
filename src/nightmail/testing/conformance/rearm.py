"""Publishing from a handler: re-arming its own timer id, and the fence around everything it publishes."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pytest

from nightmail.errors import LeaseLost, TimerExists
from nightmail.message import Message, OnConflict
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    bodies,
    claim_all,
    claim_bodies,
    claim_one,
    expired_timer,
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

EVERY_POLICY: Final[tuple[OnConflict, ...]] = ("skip", "replace", "earliest", "latest", "raise")
WHATEVER_IT_PUBLISHES: Final = (
    pytest.param(timer("reminder", b"zombie"), id="its own name"),
    pytest.param(timer("reminder", b"zombie", on_conflict="replace"), id="its own name, replacing"),
    pytest.param(timer("reminder", b"zombie", on_conflict="raise"), id="its own name, or raise"),
    pytest.param(timer("another", b"zombie"), id="another name"),
    pytest.param(timer("reminder", b"zombie", queue="refunds"), id="another queue"),
    pytest.param(message(b"zombie"), id="no name"),
)


class RearmConformance:
    """What `own`, the delivery of the handler that publishes, changes."""

    @pytest.mark.parametrize("policy", EVERY_POLICY)
    @pytest.mark.parametrize("due", [-HOUR, HOUR], ids=["overdue", "later"])
    async def test_a_handler_that_publishes_its_own_name_always_re_arms_it(
        self, store: FullStore, policy: OnConflict, due: timedelta
    ) -> None:
        own = await running_timer(store)

        new = await store.publish(timer("reminder", b"next", due=due, on_conflict=policy), own=own)

        assert new is not None
        assert new != own.id
        assert await timer_owner(store) == [(new, b"next")]
        assert await settle_one(store, own, Done()) is WriteResult.WRITTEN
        assert await timer_owner(store) == [(new, b"next")]

    async def test_a_re_armed_message_is_delivered_when_it_is_due(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        own = await running_timer(store)
        new = await stored(store, timer("reminder", b"next", due=HOUR), own=own)
        await settle_one(store, own, Done())
        assert await claim_all(store) == []

        clock.advance(HOUR)

        delivery = await claim_one(store)
        assert (delivery.id, delivery.timer_id, delivery.superseded) == (new, "reminder", False)
        assert (delivery.attempts, delivery.deliveries) == (0, 1)

    async def test_a_chain_of_re_arms_goes_on_for_ever(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(timer("reminder", b"0"))

        for round_ in range(1, 6):
            own = await claim_one(store)
            await store.publish(timer("reminder", b"%d" % round_, due=HOUR), own=own)
            await settle_one(store, own, Done())
            clock.advance(HOUR)

        assert await claim_bodies(store) == [b"5"]

    @pytest.mark.parametrize("policy", EVERY_POLICY)
    @pytest.mark.parametrize(
        ("outcome", "attempts"),
        [
            pytest.param(Retry(after=MINUTE), 1, id="retry"),
            pytest.param(Postpone(after=MINUTE), 0, id="postpone"),
            pytest.param(Release(), 0, id="release"),
        ],
    )
    async def test_when_the_handler_does_not_finish_after_a_re_arm_both_messages_survive(
        self, store: FullStore, clock: ManualClock, policy: OnConflict, outcome: Outcome, attempts: int
    ) -> None:
        own = await running_timer(store)
        new = await stored(store, timer("reminder", b"next", due=HOUR, on_conflict=policy), own=own)

        assert await settle_one(store, own, outcome) is WriteResult.WRITTEN

        clock.advance(MINUTE)
        again = await claim_one(store)
        assert (again.id, again.body, again.timer_id) == (own.id, b"old", "reminder")
        assert (again.superseded, again.attempts) == (False, attempts)
        assert await timer_owner(store) == [(new, b"next")]

    async def test_a_retry_after_a_re_arm_waits_as_long_as_it_was_told(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        own = await running_timer(store)
        await store.publish(timer("reminder", b"next", due=HOUR, on_conflict="replace"), own=own)
        await settle_one(store, own, Retry(after=MINUTE))

        assert await claim_all(store) == []
        assert [found.due_at - clock.now() for found in await store.peek()] == [MINUTE, HOUR]

    async def test_when_the_worker_is_lost_after_a_re_arm_both_messages_survive(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        own = await running_timer(store)
        new = await stored(store, timer("reminder", b"next", due=HOUR), own=own)
        clock.advance(LEASE)

        again = await claim_one(store)

        assert (again.id, again.superseded, again.deliveries) == (own.id, False, 2)
        assert await timer_owner(store) == [(new, b"next")]

    async def test_when_the_message_dies_after_a_re_arm_the_new_one_survives(self, store: FullStore) -> None:
        own = await running_timer(store)
        new = await stored(store, timer("reminder", b"next"), own=own)

        assert await settle_one(store, own, Dead("rejected")) is WriteResult.WRITTEN

        (letter,) = await store.dead(DeadFilter())
        assert (letter.message_id, letter.timer_id) == (own.id, "reminder")
        assert await timer_owner(store) == [(new, b"next")]

    async def test_a_second_re_arm_from_the_same_run_meets_the_first_as_a_waiting_message(
        self, store: FullStore
    ) -> None:
        own = await running_timer(store)
        new = await stored(store, timer("reminder", b"next"), own=own)

        assert await store.publish(timer("reminder", b"skipped"), own=own) is None
        with pytest.raises(TimerExists):
            await store.publish(timer("reminder", b"raised", on_conflict="raise"), own=own)
        assert await store.publish(timer("reminder", b"replaced", on_conflict="replace"), own=own) == new

        assert await timer_owner(store) == [(new, b"replaced")]

    async def test_a_second_run_that_re_arms_again_meets_its_first_re_arm_as_a_waiting_message(
        self, store: FullStore
    ) -> None:
        first_run = await running_timer(store)
        new = await stored(store, timer("reminder", b"next", due=HOUR), own=first_run)
        await settle_one(store, first_run, Retry())
        second_run = await claim_one(store)

        assert await store.publish(timer("reminder", b"next again", due=HOUR), own=second_run) is None

        assert await settle_one(store, second_run, Done()) is WriteResult.WRITTEN
        assert await timer_owner(store) == [(new, b"next")]

    async def test_a_message_and_its_re_arm_may_run_at_the_same_time(self, store: FullStore) -> None:
        own = await running_timer(store)
        await store.publish(timer("reminder", b"next"), own=own)

        next_ = await claim_one(store)

        assert await extend_one(store, own) is WriteResult.WRITTEN
        assert await extend_one(store, next_) is WriteResult.WRITTEN

    async def test_a_re_arm_with_the_same_ordering_key_waits_for_the_run_that_made_it(
        self, store: FullStore
    ) -> None:
        await store.publish(timer("reminder", b"old", ordering_key="k"))
        own = await claim_one(store)
        await store.publish(timer("reminder", b"next", ordering_key="k"), own=own)

        assert await claim_all(store) == []
        await settle_one(store, own, Done())
        assert await claim_bodies(store) == [b"next"]

    async def test_only_the_delivery_that_publishes_re_arms_though_a_claim_shares_its_token(
        self, store: FullStore
    ) -> None:
        await store.publish(timer("a", b"a"))
        await store.publish(timer("b", b"b"))
        a, b = await claim_all(store)
        assert a.token == b.token

        assert await store.publish(timer("b", b"not mine"), own=a) is None

        await settle_one(store, a, Done())
        await settle_one(store, b, Retry())
        assert await timer_owner(store, "b") == [(b.id, b"b")]

    async def test_the_same_name_in_another_queue_is_no_re_arm(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"refund", queue="refunds"))
        own = await running_timer(store)

        assert await store.publish(timer("reminder", b"new", queue="refunds"), own=own) is None

        assert bodies(await store.peek("refunds")) == [b"refund"]
        await settle_one(store, own, Retry())
        assert await timer_owner(store) == [(own.id, b"old")]

    # ---------------------------------------------------------------------------------------- fence

    async def test_a_handler_that_holds_its_lease_publishes_whatever_it_likes(self, store: FullStore) -> None:
        await store.publish(message(b"own"))
        own = await claim_one(store)

        assert await store.publish(message(b"unnamed"), own=own) is not None
        assert await store.publish(timer("another", b"named"), own=own) is not None

        assert await claim_bodies(store) == [b"unnamed", b"named"]

    async def test_a_lease_that_expired_but_was_not_taken_over_still_re_arms(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        own = await expired_timer(store, clock)

        new = await stored(store, timer("reminder", b"next", due=HOUR), own=own)

        assert new != own.id
        assert await timer_owner(store) == [(new, b"next")]
        assert await settle_one(store, own, Done()) is WriteResult.WRITTEN

    @pytest.mark.parametrize("published", WHATEVER_IT_PUBLISHES)
    async def test_a_handler_whose_message_was_taken_over_publishes_nothing(
        self, store: FullStore, other: FullStore, clock: ManualClock, published: Message
    ) -> None:
        stale = await expired_timer(store, clock)
        holder = await claim_one(other)

        with pytest.raises(LeaseLost) as raised:
            await store.publish(published, own=stale)

        assert raised.value.ids == (stale.id,)
        assert await store.peek() == []
        assert await settle_one(other, holder, Done()) is WriteResult.WRITTEN

    @pytest.mark.parametrize("published", WHATEVER_IT_PUBLISHES)
    async def test_a_handler_whose_message_was_cancelled_publishes_nothing(
        self, store: FullStore, clock: ManualClock, published: Message
    ) -> None:
        # Otherwise a zombie would re-arm a timer that the caller was told is cancelled.
        stale = await expired_timer(store, clock)
        assert await store.cancel(QUEUE, "reminder") is True

        with pytest.raises(LeaseLost):
            await store.publish(published, own=stale)

        assert await store.peek() == []

    @pytest.mark.parametrize("published", WHATEVER_IT_PUBLISHES)
    async def test_a_handler_whose_message_has_ended_publishes_nothing(
        self, store: FullStore, published: Message
    ) -> None:
        own = await running_timer(store)
        await settle_one(store, own, Done())

        with pytest.raises(LeaseLost):
            await store.publish(published, own=own)

        assert await store.peek() == []

    async def test_a_handler_whose_message_was_replaced_after_its_lease_expired_publishes_nothing(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        stale = await expired_timer(store, clock)
        await store.publish(timer("reminder", b"by another", on_conflict="replace"))

        for policy in EVERY_POLICY:
            with pytest.raises(LeaseLost):
                await store.publish(timer("reminder", b"zombie", on_conflict=policy), own=stale)

        assert await timer_owner(store) == [(stale.id, b"by another")]

    # --------------------------------------------------- when the timer id has gone to another message

    async def test_when_another_waiting_message_took_the_name_the_handler_meets_it_like_anybody(
        self, store: FullStore
    ) -> None:
        own = await running_timer(store)
        new = await stored(store, timer("reminder", b"by another", due=HOUR, on_conflict="replace"))

        assert await store.publish(timer("reminder", b"skipped"), own=own) is None
        with pytest.raises(TimerExists):
            await store.publish(timer("reminder", b"raised", on_conflict="raise"), own=own)
        late = timer("reminder", b"too late", due=HOUR * 2, on_conflict="earliest")
        assert await store.publish(late, own=own) is None
        assert await timer_owner(store) == [(new, b"by another")]

        assert await store.publish(timer("reminder", b"mine", on_conflict="replace"), own=own) == new
        assert await timer_owner(store) == [(new, b"mine")]

    async def test_when_another_running_message_took_the_name_the_handler_meets_it_like_anybody(
        self, store: FullStore
    ) -> None:
        own = await running_timer(store)
        await store.publish(timer("reminder", b"by another", on_conflict="replace"))
        running = await claim_one(store)

        assert await store.publish(timer("reminder", b"skipped"), own=own) is None
        with pytest.raises(TimerExists):
            await store.publish(timer("reminder", b"raised", on_conflict="raise"), own=own)
        assert await store.peek() == []

        third = await stored(store, timer("reminder", b"mine", due=HOUR, on_conflict="replace"), own=own)
        assert await timer_owner(store) == [(third, b"mine")]
        await settle_one(store, running, Release())
        back = await claim_one(store)
        assert (back.id, back.superseded) == (running.id, True)

    async def test_a_superseded_handler_that_re_arms_is_still_superseded(self, store: FullStore) -> None:
        own = await running_timer(store)
        await store.publish(timer("reminder", b"by another", due=HOUR, on_conflict="replace"))
        await store.publish(timer("reminder", b"mine", due=HOUR, on_conflict="replace"), own=own)

        await settle_one(store, own, Retry(after=HOUR))

        back = await claim_one(store)
        assert (back.id, back.superseded) == (own.id, True)

    # ------------------------------------------------------------------ in the caller's transaction

    @needs("transactions")
    async def test_a_re_arm_and_the_ack_of_its_own_message_commit_together(
        self, store: FullStore, harness: Harness
    ) -> None:
        own = await running_timer(store)

        async with harness.transaction() as transaction:
            await harness.write(transaction, "effect")
            new = await store.publish(timer("reminder", b"next"), transaction=transaction, own=own)
            await store.ack([own], transaction=transaction)

        assert await harness.written() == ["effect"]
        delivery = await claim_one(store)
        assert (delivery.id, delivery.body) == (new, b"next")

    @needs("transactions")
    async def test_after_an_ack_in_the_same_transaction_the_name_is_free(
        self, store: FullStore, harness: Harness
    ) -> None:
        own = await running_timer(store)

        async with harness.transaction() as transaction:
            await store.ack([own], transaction=transaction)
            new = await store.publish(timer("reminder", b"next"), transaction=transaction)

        assert await timer_owner(store) == [(new, b"next")]

    @needs("transactions")
    async def test_a_rolled_back_re_arm_leaves_the_name_with_the_running_message(
        self, store: FullStore, harness: Harness
    ) -> None:
        own = await running_timer(store)

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.publish(timer("reminder", b"next"), transaction=transaction, own=own)
                raise RolledBack

        assert await store.publish(timer("reminder", b"by another")) is None
        await settle_one(store, own, Retry())
        assert await timer_owner(store) == [(own.id, b"old")]

    @needs("transactions")
    async def test_a_lost_lease_takes_the_callers_writes_along(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        stale = await expired_timer(store, clock)
        await claim_one(other)

        with pytest.raises(LeaseLost):
            async with harness.transaction() as transaction:
                await harness.write(transaction, "by a zombie")
                await store.publish(timer("reminder", b"next"), transaction=transaction, own=stale)

        assert await harness.written() == []
        assert await store.peek() == []
