"""A lease is the only right to write: its holder, its end, and what a late worker may no longer do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from nightmail.errors import LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Extend, FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    QUEUE,
    SECOND,
    claim_all,
    claim_bodies,
    claim_one,
    extend_one,
    fresh_token,
    message,
    needs,
    promptly,
    settle_one,
    timer,
)
from nightmail.testing.conformance.harness import Harness, RolledBack

every_outcome = pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(Done(), id="done"),
        pytest.param(Retry(MINUTE), id="retry"),
        pytest.param(Postpone(MINUTE), id="postpone"),
        pytest.param(Dead("rejected"), id="dead"),
        pytest.param(Release(), id="release"),
    ],
)


class LeaseConformance:
    """Leases: held, expired, taken over, extended, lost."""

    # ------------------------------------------------------------------------------ held and expired

    async def test_a_running_message_is_not_claimed(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await claim_one(store, lease=LEASE)

        assert await claim_all(store) == []
        assert await claim_all(other) == []
        clock.advance(LEASE - MICROSECOND)
        assert await claim_all(other) == []

    async def test_an_expired_lease_is_taken_over_under_a_new_token(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"once more"))
        first = await claim_one(store, lease=LEASE)

        clock.advance(LEASE)
        successor = await claim_one(other)

        assert successor.id == first.id
        assert successor.body == b"once more"
        assert successor.token != first.token
        assert successor.claimed_at == clock.now()

    async def test_every_lost_lease_is_counted_as_a_delivery_and_not_as_an_attempt(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())

        counted = []
        for _ in range(4):
            delivery = await claim_one(store, lease=LEASE)
            counted.append((delivery.deliveries, delivery.attempts))
            clock.advance(LEASE)

        assert counted == [(1, 0), (2, 0), (3, 0), (4, 0)]

    async def test_each_claim_gives_the_lease_it_was_asked_for(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"short"), message(b"long")])
        await claim_all(store, limit=1, lease=SECOND)
        await claim_all(store, limit=1, lease=HOUR)

        clock.advance(SECOND)
        assert await claim_bodies(store, lease=HOUR * 2) == [b"short"]
        clock.advance(HOUR - SECOND)
        assert await claim_bodies(store) == [b"long"]

    async def test_a_lease_of_a_fraction_of_a_second_ends_to_the_microsecond(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await claim_one(store, lease=timedelta(milliseconds=1, microseconds=1))

        clock.advance(timedelta(milliseconds=1))
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        assert len(await claim_all(store)) == 1

    async def test_a_message_taken_over_keeps_its_due_time_and_its_name(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        due_at = clock.now()
        await store.publish(timer("reminder", priority=3, headers={"trace": "abc"}))
        await claim_one(store, lease=LEASE)
        clock.advance(LEASE)

        successor = await claim_one(store)

        assert successor.due_at == due_at
        assert (successor.timer_id, successor.priority) == ("reminder", 3)
        assert successor.headers == {"trace": "abc"}
        assert await store.publish(timer("reminder")) is None

    # ----------------------------------------------------------------------- fenced after a takeover

    @every_outcome
    async def test_a_late_worker_cannot_settle_what_another_has_taken_over(
        self, store: FullStore, other: FullStore, clock: ManualClock, outcome: Outcome
    ) -> None:
        await store.publish(timer("reminder", b"mine now"))
        late = await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        successor = await claim_one(other, lease=LEASE)

        assert await settle_one(store, late, outcome) is WriteResult.LOST

        assert await claim_all(store) == []
        assert await store.dead(DeadFilter()) == []
        assert await extend_one(other, successor) is WriteResult.WRITTEN
        clock.advance(LEASE)
        again = await claim_one(other)
        assert (again.id, again.body, again.timer_id) == (late.id, b"mine now", "reminder")
        assert (again.deliveries, again.attempts, again.due_at) == (3, 0, late.due_at)

    async def test_a_late_worker_cannot_extend_the_lease_of_its_successor(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        late = await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        successor = await claim_one(other, lease=LEASE)

        assert await extend_one(store, late, HOUR) is WriteResult.LOST

        clock.advance(LEASE)
        assert (await claim_one(other)).id == successor.id

    @needs("transactions")
    async def test_a_late_worker_cannot_ack_in_its_transaction_what_another_has_taken_over(
        self, store: FullStore, other: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        await store.publish(message())
        late = await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        successor = await claim_one(other, lease=LEASE)

        with pytest.raises(LeaseLost) as lost:
            async with harness.transaction() as transaction:
                await harness.write(transaction, "an effect that must not stay")
                await store.ack([late], transaction=transaction)

        assert lost.value.ids == (late.id,)
        assert await harness.written() == []
        assert await settle_one(other, successor, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    async def test_a_late_worker_cannot_hold_what_another_has_taken_over(
        self, store: FullStore, other: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        await store.publish(message())
        late = await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        successor = await claim_one(other, lease=LEASE)

        with pytest.raises(LeaseLost) as lost:
            async with harness.transaction() as transaction:
                await store.hold([late], transaction=transaction)

        assert lost.value.ids == (late.id,)
        assert await settle_one(other, successor, Done()) is WriteResult.WRITTEN

    async def test_a_late_worker_cannot_publish_in_the_name_of_its_delivery(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder"))
        late = await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        successor = await claim_one(other, lease=LEASE)

        with pytest.raises(LeaseLost):
            await store.publish(timer("reminder", b"from a late worker"), own=late)

        assert await settle_one(other, successor, Done()) is WriteResult.WRITTEN
        assert await store.peek() == []

    async def test_of_three_holders_after_one_another_only_the_last_may_settle(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        holders = []
        for worker in (store, other, store):
            holders.append(await claim_one(worker, lease=LEASE))
            clock.advance(LEASE)

        results = [await settle_one(store, holder, Done()) for holder in holders]

        assert results == [WriteResult.LOST, WriteResult.LOST, WriteResult.WRITTEN]

    async def test_a_lease_is_the_id_and_the_token_together(self, store: FullStore) -> None:
        await store.publish_batch([message(b"a"), message(b"b")])
        (a,) = await claim_all(store, limit=1)
        (b,) = await claim_all(store, limit=1)

        crossed = replace(a, token=b.token)
        unknown = replace(a, token=fresh_token())

        assert await settle_one(store, crossed, Done()) is WriteResult.LOST
        assert await settle_one(store, unknown, Done()) is WriteResult.LOST
        assert await extend_one(store, crossed) is WriteResult.LOST
        assert await settle_one(store, a, Done()) is WriteResult.WRITTEN
        assert await settle_one(store, b, Done()) is WriteResult.WRITTEN

    async def test_a_lease_ends_with_its_settlement(self, store: FullStore) -> None:
        await store.publish_batch([message(b"done"), message(b"retried")])
        done, retried = await claim_all(store)
        await settle_one(store, done, Done())
        await settle_one(store, retried, Retry())

        assert await extend_one(store, done) is WriteResult.LOST
        assert await extend_one(store, retried) is WriteResult.LOST
        assert await claim_bodies(store) == [b"retried"]

    async def test_cancelling_a_message_whose_lease_expired_ends_that_lease(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder"))
        late = await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        assert await store.cancel(QUEUE, "reminder")

        assert await settle_one(store, late, Done()) is WriteResult.LOST
        assert await extend_one(store, late) is WriteResult.LOST

    # ------------------------------------------------------------------- expired, but not taken over

    @every_outcome
    async def test_an_expired_lease_that_was_not_taken_over_still_settles(
        self, store: FullStore, clock: ManualClock, outcome: Outcome
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store, lease=LEASE)
        clock.advance(LEASE + HOUR)

        assert await settle_one(store, delivery, outcome) is WriteResult.WRITTEN
        assert await settle_one(store, delivery, outcome) is WriteResult.LOST

    async def test_an_expired_lease_that_was_not_taken_over_can_be_extended(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store, lease=LEASE)
        clock.advance(LEASE + HOUR)

        assert await extend_one(store, delivery, LEASE) is WriteResult.WRITTEN

        assert await claim_all(other) == []
        assert await settle_one(store, delivery, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    async def test_an_expired_lease_that_was_not_taken_over_can_be_acked_in_a_transaction(
        self, store: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store, lease=LEASE)
        clock.advance(LEASE + HOUR)

        async with harness.transaction() as transaction:
            await store.hold([delivery], transaction=transaction)
            await harness.write(transaction, "effect")
            await store.ack([delivery], transaction=transaction)

        assert await harness.written() == ["effect"]
        assert await claim_all(store) == []

    # --------------------------------------------------------------------------------------- extend

    async def test_an_extended_lease_runs_from_the_moment_of_extending(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store, lease=SECOND * 30)

        clock.advance(SECOND * 20)
        assert await extend_one(store, delivery, SECOND * 30) is WriteResult.WRITTEN

        clock.advance(SECOND * 30 - MICROSECOND)
        assert await claim_all(other) == []
        clock.advance(MICROSECOND)
        assert len(await claim_all(other)) == 1

    async def test_extending_never_shortens_a_lease(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store, lease=SECOND * 60)

        assert await extend_one(store, delivery, SECOND * 10) is WriteResult.WRITTEN

        clock.advance(SECOND * 60 - MICROSECOND)
        assert await claim_all(other) == []
        clock.advance(MICROSECOND)
        assert len(await claim_all(other)) == 1

    async def test_extending_again_and_again_keeps_a_message_for_as_long_as_it_takes(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store, lease=LEASE)

        for _ in range(10):
            clock.advance(LEASE - SECOND)
            assert await extend_one(store, delivery, LEASE) is WriteResult.WRITTEN
            assert await claim_all(other) == []

        assert await settle_one(store, delivery, Done()) is WriteResult.WRITTEN

    async def test_extending_changes_nothing_but_the_lease(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(priority=2))
        delivery = await claim_one(store, lease=LEASE)
        clock.advance(SECOND)
        await extend_one(store, delivery, LEASE)
        clock.advance(LEASE)

        again = await claim_one(store)

        assert (again.deliveries, again.attempts, again.priority) == (2, 0, 2)
        assert (again.due_at, again.published_at) == (delivery.due_at, delivery.published_at)

    async def test_many_leases_are_extended_at_once_and_answered_in_order(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(5)])
        deliveries = await claim_all(store, lease=LEASE)
        await settle_one(store, deliveries[1], Done())
        await settle_one(store, deliveries[3], Retry(HOUR))

        asked = [deliveries[4], deliveries[3], deliveries[0], deliveries[1], deliveries[2]]
        results = await store.extend(asked, LEASE * 2)

        held, lost = WriteResult.WRITTEN, WriteResult.LOST
        assert list(results) == [held, lost, held, lost, held]
        clock.advance(LEASE)
        assert await claim_all(other) == []

    @pytest.mark.parametrize("late_first", [True, False], ids=["late first", "late last"])
    async def test_a_late_and_a_good_lease_on_one_message_are_told_apart_when_extended_together(
        self, store: FullStore, clock: ManualClock, late_first: bool
    ) -> None:
        await store.publish(message())
        late = await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        good = await claim_one(store, lease=LEASE)

        results = await store.extend([late, good] if late_first else [good, late], LEASE)

        lost, held = WriteResult.LOST, WriteResult.WRITTEN
        assert list(results) == ([lost, held] if late_first else [held, lost])

    async def test_a_lease_that_is_named_twice_is_answered_twice(self, store: FullStore) -> None:
        await store.publish_batch([message(), message()])
        first, second = await claim_all(store)

        assert list(await store.extend([first, second, first], LEASE)) == [WriteResult.WRITTEN] * 3

    async def test_extending_nothing_answers_nothing(self, store: FullStore) -> None:
        assert list(await store.extend([], LEASE)) == []

    async def test_leases_of_many_messages_in_many_queues_are_extended_together(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        queues = ("orders", "refunds", "mail")
        await store.publish_batch([message(queue=queues[number % 3]) for number in range(300)])
        deliveries = await claim_all(store, *queues, limit=300, lease=LEASE)
        clock.advance(SECOND)

        assert list(await store.extend(deliveries, LEASE)) == [WriteResult.WRITTEN] * 300

        clock.advance(LEASE - SECOND)
        assert await claim_all(other, *queues) == []

    @needs("transactions", "concurrent_writers")
    async def test_extending_does_not_wait_for_a_row_that_a_transaction_has_locked(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish_batch([message(b"locked"), message(b"free")])
        locked, free = await claim_all(store, lease=LEASE)

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.ack([locked], transaction=transaction)

                async with promptly():
                    assert list(await store.extend([locked, free], LEASE)) == [
                        WriteResult.BUSY,
                        WriteResult.WRITTEN,
                    ]
                raise RolledBack

        assert list(await store.extend([locked, free], LEASE)) == [WriteResult.WRITTEN, WriteResult.WRITTEN]

    # ------------------------------------------------------------------------- run_on_keeper_thread

    async def test_work_beside_runs_and_can_extend_leases(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store, lease=LEASE)
        keeper = _Keeper([delivery], HOUR)

        async with store.run_on_keeper_thread(keeper):
            await keeper.has_extended()

        assert keeper.results == [WriteResult.WRITTEN]
        clock.advance(LEASE)
        assert await claim_all(other) == []

    async def test_work_beside_is_told_which_leases_are_lost(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"kept"), message(b"lost")])
        kept, lost = await claim_all(store, lease=LEASE)
        await store.extend([kept], HOUR)
        clock.advance(LEASE)
        await claim_one(other)
        keeper = _Keeper([lost, kept], HOUR)

        async with store.run_on_keeper_thread(keeper):
            await keeper.has_extended()

        assert keeper.results == [WriteResult.LOST, WriteResult.WRITTEN]

    async def test_work_beside_is_cancelled_when_the_block_is_left(self, store: FullStore) -> None:
        keeper = _Keeper([], LEASE)

        async with store.run_on_keeper_thread(keeper):
            await keeper.has_extended()
            assert not keeper.cancelled.is_set()

        await came(keeper.cancelled)

    async def test_work_beside_is_cancelled_when_the_block_raises_and_the_error_goes_on(
        self, store: FullStore
    ) -> None:
        keeper = _Keeper([], LEASE)

        with pytest.raises(RolledBack):
            async with store.run_on_keeper_thread(keeper):
                await keeper.has_extended()
                raise RolledBack

        await came(keeper.cancelled)

    async def test_a_block_may_be_left_after_its_work_has_ended(self, store: FullStore) -> None:
        ended = threading.Event()

        async def work(extend: Extend) -> None:
            ended.set()

        async with promptly(), store.run_on_keeper_thread(work):
            await came(ended)

        await store.ping()

    async def test_an_error_of_the_work_comes_out_with_its_block(self, store: FullStore) -> None:
        failing = threading.Event()

        async def work(extend: Extend) -> None:
            failing.set()
            raise LookupError("on purpose")

        with pytest.raises(LookupError, match="on purpose"):
            async with promptly(), store.run_on_keeper_thread(work):
                await came(failing)

        await store.ping()

    async def test_two_works_run_beside_at_once_and_end_each_with_its_own_block(
        self, store: FullStore
    ) -> None:
        await store.publish_batch([message(), message()])
        first, second = await claim_all(store)
        outer, inner = _Keeper([first], HOUR), _Keeper([second], HOUR)

        async with store.run_on_keeper_thread(outer):
            async with store.run_on_keeper_thread(inner):
                await outer.has_extended()
                await inner.has_extended()
            await came(inner.cancelled)
            assert not outer.cancelled.is_set()
            assert await settle_one(store, second, Done()) is WriteResult.WRITTEN
        await came(outer.cancelled)

        assert (outer.results, inner.results) == ([WriteResult.WRITTEN], [WriteResult.WRITTEN])

    async def test_work_can_be_run_beside_again_after_it_has_ended(self, store: FullStore) -> None:
        await store.publish(message())
        delivery = await claim_one(store)

        for _ in range(2):
            keeper = _Keeper([delivery], HOUR)
            async with store.run_on_keeper_thread(keeper):
                await keeper.has_extended()
            assert keeper.results == [WriteResult.WRITTEN]

    async def test_work_beside_keeps_extending_while_the_store_is_used(self, store: FullStore) -> None:
        await store.publish_batch([message() for _ in range(20)])
        deliveries = await claim_all(store, lease=LEASE)
        extended = threading.Event()

        async def work(extend: Extend) -> None:
            for _ in range(10):
                await extend(deliveries, LEASE)
            extended.set()

        async with promptly(), store.run_on_keeper_thread(work):
            for _ in range(10):
                await store.publish(message(b"meanwhile", queue="refunds"))
                await settle_one(store, (await claim_all(store, "refunds", limit=1))[0], Done())
            await came(extended)

        assert list(await store.extend(deliveries, LEASE)) == [WriteResult.WRITTEN] * 20


class _Keeper:
    """Work for `run_on_keeper_thread`: extends once, then stays until cancelled. May run on another thread."""

    def __init__(self, deliveries: Sequence[Delivery], lease: timedelta) -> None:
        self.results: list[WriteResult] = []
        self.cancelled = threading.Event()
        self._deliveries = deliveries
        self._lease = lease
        self._extended = threading.Event()

    async def __call__(self, extend: Extend) -> None:
        self.results += await extend(self._deliveries, self._lease)
        self._extended.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def has_extended(self) -> None:
        """Wait until it has extended."""
        await came(self._extended)


async def came(event: threading.Event) -> None:
    """Wait for something that may happen on another thread or on this loop, without blocking either."""
    assert await asyncio.to_thread(event.wait, 5), "it did not happen within five seconds"
