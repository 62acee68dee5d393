"""Cancelling and rescheduling: only waiting messages, and only the owner of the timer id."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nightmail.errors import LeaseLost
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    QUEUE,
    SECOND,
    bodies,
    claim_all,
    claim_bodies,
    claim_one,
    expired_timer,
    extend_one,
    message,
    needs,
    promptly,
    running_timer,
    settle_one,
    stored,
    timer,
    timer_owner,
)
from nightmail.testing.conformance.harness import Harness, RolledBack


class CancelConformance:
    """`cancel`, `cancel_all` and `reschedule`."""

    # ---------------------------------------------------------------------------------------- cancel

    async def test_cancelling_a_waiting_message_removes_it(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", due=HOUR))

        assert await store.cancel(QUEUE, "reminder") is True

        clock.advance(HOUR)
        assert await claim_all(store) == []
        assert await store.stats() == {}

    async def test_a_message_that_is_due_can_still_be_cancelled(self, store: FullStore) -> None:
        await store.publish(timer("reminder"))

        assert await store.cancel(QUEUE, "reminder") is True
        assert await claim_all(store) == []

    async def test_only_the_call_that_removed_something_says_so(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish(timer("reminder"))

        assert await other.cancel(QUEUE, "reminder") is True
        assert await store.cancel(QUEUE, "reminder") is False

    async def test_cancelling_an_unknown_name_does_nothing(self, store: FullStore) -> None:
        await store.publish(timer("reminder"))
        await store.publish(message(b"unnamed"))

        assert await store.cancel(QUEUE, "another") is False
        assert await store.cancel("refunds", "reminder") is False

        assert len(await store.peek()) == 2

    async def test_cancelling_frees_the_name(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"first"))
        await store.cancel(QUEUE, "reminder")

        second = await store.publish(timer("reminder", b"second"))

        assert await timer_owner(store) == [(second, b"second")]

    async def test_cancelling_leaves_everybody_else_alone(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"order"))
        await store.publish(timer("reminder", b"refund", queue="refunds"))
        await store.publish(timer("another", b"another"))

        await store.cancel(QUEUE, "reminder")

        assert bodies(await store.peek()) == [b"refund", b"another"]

    @pytest.mark.parametrize(
        "outcome", [Retry(after=HOUR), Postpone(after=HOUR), Release()], ids=["retry", "postpone", "release"]
    )
    async def test_a_message_on_its_way_back_waits_and_can_be_cancelled(
        self, store: FullStore, clock: ManualClock, outcome: Outcome
    ) -> None:
        await settle_one(store, await running_timer(store), outcome)

        assert await store.cancel(QUEUE, "reminder") is True

        clock.advance(HOUR)
        assert await claim_all(store) == []

    async def test_a_running_message_is_not_cancelled(self, store: FullStore) -> None:
        running = await running_timer(store)

        assert await store.cancel(QUEUE, "reminder") is False

        assert await extend_one(store, running) is WriteResult.WRITTEN
        await settle_one(store, running, Retry(after=MINUTE))
        assert await timer_owner(store) == [(running.id, b"old")]

    async def test_an_expired_lease_does_not_protect_from_cancelling_and_its_holder_is_told(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        holder = await expired_timer(store, clock)

        assert await store.cancel(QUEUE, "reminder") is True

        assert await settle_one(store, holder, Retry()) is WriteResult.LOST
        assert await extend_one(store, holder) is WriteResult.LOST
        assert await claim_all(store) == []

    async def test_a_lease_protects_until_the_very_moment_it_expires(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await running_timer(store)

        clock.advance(LEASE - MICROSECOND)
        assert await store.cancel(QUEUE, "reminder") is False
        clock.advance(MICROSECOND)
        assert await store.cancel(QUEUE, "reminder") is True

    async def test_a_dead_message_is_not_cancelled(self, store: FullStore) -> None:
        await settle_one(store, await running_timer(store), Dead("rejected"))

        assert await store.cancel(QUEUE, "reminder") is False

        assert len(await store.dead(DeadFilter())) == 1

    async def test_cancelling_a_superseded_name_removes_the_new_message_and_leaves_the_running_one(
        self, store: FullStore
    ) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new", on_conflict="replace"))

        assert await store.cancel(QUEUE, "reminder") is True

        assert await store.peek() == []
        assert await settle_one(store, old, Done()) is WriteResult.WRITTEN

    async def test_a_superseded_message_that_came_back_is_not_cancelled_by_its_former_name(
        self, store: FullStore
    ) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new", on_conflict="replace"))
        await settle_one(store, old, Retry())
        assert await store.cancel(QUEUE, "reminder") is True

        assert await store.cancel(QUEUE, "reminder") is False

        back = await claim_one(store)
        assert (back.id, back.superseded) == (old.id, True)

    async def test_after_a_re_arm_only_the_new_message_is_cancelled(self, store: FullStore) -> None:
        own = await running_timer(store)
        await store.publish(timer("reminder", b"next"), own=own)

        assert await store.cancel(QUEUE, "reminder") is True

        assert await settle_one(store, own, Retry()) is WriteResult.WRITTEN
        assert await claim_bodies(store) == [b"old"]

    async def test_cancelling_the_head_of_an_ordering_key_releases_the_next(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"head", ordering_key="k"))
        await store.publish(message(b"next", ordering_key="k"))
        await settle_one(store, await claim_one(store), Retry(after=HOUR))
        assert await claim_all(store) == []

        await store.cancel(QUEUE, "reminder")

        assert await claim_bodies(store) == [b"next"]

    @needs("transactions")
    async def test_a_cancel_commits_with_its_transaction(self, store: FullStore, harness: Harness) -> None:
        await store.publish(timer("reminder"))

        async with harness.transaction() as transaction:
            await harness.write(transaction, "cancelled")
            assert await store.cancel(QUEUE, "reminder", transaction=transaction) is True
            assert await store.cancel(QUEUE, "reminder", transaction=transaction) is False
            assert len(await store.peek()) == 1

        assert await harness.written() == ["cancelled"]
        assert await store.peek() == []

    @needs("transactions")
    async def test_a_rolled_back_cancel_leaves_the_message_as_it_was(
        self, store: FullStore, harness: Harness
    ) -> None:
        first = await running_timer(store)
        await settle_one(store, first, Retry())

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                assert await store.cancel(QUEUE, "reminder", transaction=transaction) is True
                raise RolledBack

        delivery = await claim_one(store)
        assert (delivery.id, delivery.attempts, delivery.timer_id) == (first.id, 1, "reminder")

    @needs("transactions")
    async def test_what_a_transaction_published_it_may_cancel(
        self, store: FullStore, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish(timer("reminder", b"first"), transaction=transaction)
            assert await store.cancel(QUEUE, "reminder", transaction=transaction) is True
            await store.publish(timer("reminder", b"second"), transaction=transaction)

        assert await claim_bodies(store) == [b"second"]

    @needs("transactions", "concurrent_writers")
    async def test_while_a_cancel_is_open_the_message_is_not_claimed_and_no_worker_waits_for_it(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish(timer("reminder", b"named"))
        await store.publish(message(b"neighbour"))

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.cancel(QUEUE, "reminder", transaction=transaction)
                async with promptly():
                    assert await claim_bodies(store) == [b"neighbour"]
                raise RolledBack

        assert await claim_bodies(store) == [b"named"]

    # ------------------------------------------------------------------------------------ cancel_all

    async def test_cancel_all_removes_everything_that_waits_and_tells_how_many(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await expired_timer(store, clock, "expired")
        await store.publish_batch([message(b"now"), message(b"later", due=HOUR), message(priority=9)])
        await store.publish(timer("named"))
        await store.publish(message(ordering_key="k"))

        assert await store.cancel_all(QUEUE) == 6

        clock.advance(HOUR)
        assert await store.stats() == {}
        assert await claim_all(store) == []

    async def test_cancel_all_of_an_empty_queue_is_nothing(self, store: FullStore) -> None:
        assert await store.cancel_all(QUEUE) == 0

    async def test_cancel_all_leaves_other_queues_alone(self, store: FullStore) -> None:
        await store.publish(message(b"order"))
        await store.publish(message(b"refund", queue="refunds"))

        assert await store.cancel_all("orders") == 1

        assert bodies(await store.peek()) == [b"refund"]

    async def test_cancel_all_leaves_running_messages_and_dead_letters_alone(self, store: FullStore) -> None:
        await store.publish(message(b"dead"))
        await settle_one(store, await claim_one(store), Dead("rejected"))
        await store.publish(message(b"running"))
        running = await claim_one(store)
        await store.publish(message(b"waiting"))

        assert await store.cancel_all(QUEUE) == 1

        assert bodies(await store.dead(DeadFilter())) == [b"dead"]
        assert await settle_one(store, running, Retry()) is WriteResult.WRITTEN
        assert await claim_bodies(store) == [b"running"]

    async def test_cancel_all_takes_an_expired_lease_from_its_holder(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        holder = await expired_timer(store, clock)

        assert await store.cancel_all(QUEUE) == 1

        assert await settle_one(store, holder, Done()) is WriteResult.LOST

    async def test_cancel_all_frees_the_names_of_what_it_removed_and_of_nothing_else(
        self, store: FullStore
    ) -> None:
        await running_timer(store, "running")
        await store.publish(timer("waiting"))

        await store.cancel_all(QUEUE)

        assert await store.publish(timer("waiting")) is not None
        assert await store.publish(timer("running")) is None

    async def test_cancel_all_removes_no_more_than_its_limit_and_goes_on_until_none_waits(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("running", dedup_for=HOUR))
        running = await claim_one(store)
        await store.publish_batch(
            [message(due=HOUR), message(priority=9), message(), message(queue="others")]
        )
        await store.publish(timer("named", dedup_for=HOUR))
        for _ in range(3):
            await store.publish(message(ordering_key="k"))

        removed = [await store.cancel_all(QUEUE, limit=3) for _ in range(4)]

        assert all(some <= 3 for some in removed)
        assert (sum(removed), removed[-1]) == (7, 0)
        assert [each.queue for each in await store.peek()] == ["others"]
        assert await store.publish(timer("named", dedup_for=HOUR)) is not None
        assert await store.publish(timer("running", dedup_for=HOUR)) is None
        assert await settle_one(store, running, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    async def test_a_limited_cancel_all_commits_with_its_transaction(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish_batch([message(), message(), message()])

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                assert await store.cancel_all(QUEUE, limit=2, transaction=transaction) == 2
                raise RolledBack
        async with harness.transaction() as transaction:
            assert await store.cancel_all(QUEUE, limit=2, transaction=transaction) == 2

        assert len(await store.peek()) == 1

    @needs("transactions")
    async def test_cancel_all_commits_with_its_transaction(self, store: FullStore, harness: Harness) -> None:
        await store.publish_batch([message(), message()])

        async with harness.transaction() as transaction:
            await store.publish(message(b"uncommitted"), transaction=transaction)
            assert await store.cancel_all(QUEUE, transaction=transaction) == 3
            await store.publish(message(b"after"), transaction=transaction)

        assert await claim_bodies(store) == [b"after"]

    @needs("transactions")
    async def test_a_rolled_back_cancel_all_removes_nothing(self, store: FullStore, harness: Harness) -> None:
        await store.publish_batch([message(b"a"), message(b"b")])

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                assert await store.cancel_all(QUEUE, transaction=transaction) == 2
                raise RolledBack

        assert await claim_bodies(store) == [b"a", b"b"]

    # ------------------------------------------------------------------------------------ reschedule

    async def test_a_waiting_message_moves_to_a_later_time(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        first = await stored(store, timer("reminder", b"hello", headers={"n": 1}, priority=3))

        assert await store.reschedule(QUEUE, "reminder", HOUR) is True

        clock.advance(HOUR - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        delivery = await claim_one(store)
        assert (delivery.id, delivery.body, delivery.headers, delivery.priority) == (
            first,
            b"hello",
            {"n": 1},
            3,
        )

    async def test_a_waiting_message_moves_to_an_earlier_time(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", due=HOUR))

        assert await store.reschedule(QUEUE, "reminder", clock.now() + MINUTE) is True

        clock.advance(MINUTE)
        assert await claim_bodies(store) == [b"hello"]

    @pytest.mark.parametrize(
        "due",
        [timedelta(0), timedelta(days=-1), datetime(1999, 12, 31, tzinfo=UTC)],
        ids=["now", "a day ago", "in 1999"],
    )
    async def test_moving_a_message_to_the_past_makes_it_due_now_and_is_stored_as_now(
        self, store: FullStore, clock: ManualClock, due: datetime | timedelta
    ) -> None:
        await store.publish(timer("reminder", due=HOUR))
        clock.advance(SECOND)

        assert await store.reschedule(QUEUE, "reminder", due) is True

        assert [found.due_at for found in await store.peek()] == [clock.now()]
        assert await claim_bodies(store) == [b"hello"]

    async def test_moving_a_message_keeps_its_attempts(self, store: FullStore, clock: ManualClock) -> None:
        await settle_one(store, await running_timer(store), Retry())
        await settle_one(store, await claim_one(store), Retry(after=HOUR))

        await store.reschedule(QUEUE, "reminder", MINUTE)

        clock.advance(MINUTE)
        delivery = await claim_one(store)
        assert (delivery.attempts, delivery.deliveries) == (2, 1)

    async def test_moving_a_message_keeps_the_count_of_lost_workers(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await expired_timer(store, clock)

        assert await store.reschedule(QUEUE, "reminder", MINUTE) is True

        assert await claim_all(store) == []
        clock.advance(MINUTE)
        delivery = await claim_one(store)
        assert (delivery.attempts, delivery.deliveries) == (0, 2)

    async def test_moving_a_message_ends_an_expired_lease_and_its_holder_is_told(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        # Otherwise a late holder could finish or retry a message that the caller was told comes later.
        holder = await expired_timer(store, clock)
        await store.reschedule(QUEUE, "reminder", HOUR)

        assert await extend_one(store, holder) is WriteResult.LOST
        assert await settle_one(store, holder, Done()) is WriteResult.LOST

        assert [found.due_at for found in await store.peek()] == [clock.now() + HOUR]

    async def test_moving_a_message_does_not_move_its_expiry(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        expires_at = clock.now() + HOUR
        await store.publish(timer("reminder", expires_in=HOUR))

        await store.reschedule(QUEUE, "reminder", MINUTE)

        assert [found.expires_at for found in await store.peek()] == [expires_at]

    async def test_a_running_message_does_not_move(self, store: FullStore, clock: ManualClock) -> None:
        running = await running_timer(store)

        assert await store.reschedule(QUEUE, "reminder", HOUR) is False

        assert await extend_one(store, running) is WriteResult.WRITTEN
        await settle_one(store, running, Release())
        assert [found.due_at for found in await store.peek()] == [clock.now()]

    async def test_an_unknown_name_does_not_move(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(timer("reminder"))
        await store.publish(message())

        assert await store.reschedule(QUEUE, "another", HOUR) is False
        assert await store.reschedule("refunds", "reminder", HOUR) is False

        assert [found.due_at for found in await store.peek()] == [clock.now()] * 2

    async def test_moving_a_superseded_name_moves_the_new_message(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        old = await running_timer(store)
        new = await stored(store, timer("reminder", b"new", on_conflict="replace"))

        assert await store.reschedule(QUEUE, "reminder", HOUR) is True

        assert [(found.id, found.due_at) for found in await store.peek()] == [(new, clock.now() + HOUR)]
        assert await settle_one(store, old, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    async def test_a_move_commits_with_its_transaction_and_counts_from_the_call(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        start = clock.now()
        await store.publish(timer("reminder", due=HOUR))

        async with harness.transaction() as transaction:
            await harness.write(transaction, "moved")
            clock.advance(SECOND)
            assert await store.reschedule(QUEUE, "reminder", MINUTE, transaction=transaction) is True
            assert [found.due_at for found in await store.peek()] == [start + HOUR]
            clock.advance(SECOND)

        assert await harness.written() == ["moved"]
        assert [found.due_at for found in await store.peek()] == [start + SECOND + MINUTE]

    @needs("transactions")
    async def test_a_rolled_back_move_moves_nothing(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", due=HOUR))

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                assert await store.reschedule(QUEUE, "reminder", MINUTE, transaction=transaction) is True
                raise RolledBack

        assert [found.due_at for found in await store.peek()] == [clock.now() + HOUR]

    @needs("transactions")
    async def test_a_cancelled_message_cannot_be_acked_by_its_former_holder(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        holder = await expired_timer(store, clock)
        await store.cancel(QUEUE, "reminder")

        with pytest.raises(LeaseLost):
            async with harness.transaction() as transaction:
                await harness.write(transaction, "effect of a cancelled message")
                await store.ack([holder], transaction=transaction)

        assert await harness.written() == []
