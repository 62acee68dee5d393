"""Settling in the caller's own transaction: fenced, all or nothing, and without blocking other workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import pytest

from nightmail.errors import CannotJoin, LeaseLost, NotInTransaction
from nightmail.message import Delivery
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    QUEUE,
    bodies,
    claim_all,
    claim_bodies,
    claim_one,
    extend_one,
    message,
    needs,
    promptly,
    settle_one,
    timer,
)
from nightmail.testing.conformance.harness import Harness, RolledBack

Verb: TypeAlias = Callable[[FullStore, Delivery, Any], Awaitable[object]]

EVERY_VERB_THAT_JOINS: Final[dict[str, Verb]] = {
    "publish": lambda store, _, given: store.publish(message(b"refused"), transaction=given),
    "publish a timer": lambda store, _, given: store.publish(timer("refused"), transaction=given),
    "publish_batch": lambda store, _, given: store.publish_batch([message(b"refused")], transaction=given),
    "hold": lambda store, own, given: store.hold([own], transaction=given),
    "ack": lambda store, own, given: store.ack([own], transaction=given),
    "cancel": lambda store, _, given: store.cancel(QUEUE, "reminder", transaction=given),
    "cancel_all": lambda store, _, given: store.cancel_all(QUEUE, transaction=given),
    "reschedule": lambda store, _, given: store.reschedule(QUEUE, "reminder", HOUR, transaction=given),
    "peek": lambda store, _, given: store.peek(transaction=given),
}


async def two_running(store: FullStore) -> tuple[Delivery, Delivery]:
    """Two messages in flight at one worker."""
    await store.publish_batch([message(b"a"), message(b"b")])
    a, b = await claim_all(store)
    return a, b


async def one_running_one_lost(
    store: FullStore, other: FullStore, clock: ManualClock
) -> tuple[Delivery, Delivery]:
    """Two messages this worker believes it holds; another worker has taken over the second."""
    await store.publish(message(b"lost", priority=9))
    lost = await claim_one(store)
    clock.advance(LEASE)
    await claim_one(other)
    await store.publish(message(b"held"))
    return await claim_one(store), lost


class TransactionConformance:
    """`ack` and `hold` in a caller's transaction, and what cannot be one."""

    # ------------------------------------------------------------------------------------------- ack

    @needs("transactions")
    async def test_an_ack_commits_with_the_callers_own_writes(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)

        async with harness.transaction() as transaction:
            await harness.write(transaction, "effect")
            await store.ack([delivery], transaction=transaction)

        assert await harness.written() == ["effect"]
        assert await store.stats() == {}
        clock.advance(LEASE)
        assert await claim_all(store) == []
        assert await settle_one(store, delivery, Retry()) is WriteResult.LOST

    @needs("transactions")
    async def test_several_deliveries_are_acked_together(self, store: FullStore, harness: Harness) -> None:
        a, b = await two_running(store)

        async with harness.transaction() as transaction:
            await store.ack([a, b], transaction=transaction)

        assert await store.stats() == {}

    @needs("transactions")
    async def test_acking_and_holding_nothing_does_nothing(self, store: FullStore, harness: Harness) -> None:
        await store.publish(message())

        async with harness.transaction() as transaction:
            await store.hold([], transaction=transaction)
            await store.ack([], transaction=transaction)

        assert await claim_bodies(store) == [b"hello"]

    @needs("transactions")
    async def test_an_ack_frees_the_name(self, store: FullStore, harness: Harness) -> None:
        await store.publish(timer("reminder", b"first"))
        delivery = await claim_one(store)

        async with harness.transaction() as transaction:
            await store.ack([delivery], transaction=transaction)

        assert await store.publish(timer("reminder", b"second")) is not None

    @needs("transactions")
    async def test_an_ack_releases_the_next_of_its_ordering_key(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish_batch([message(b"head", ordering_key="k"), message(b"next", ordering_key="k")])
        head = await claim_one(store)

        async with harness.transaction() as transaction:
            await store.ack([head], transaction=transaction)

        assert await claim_bodies(store) == [b"next"]

    @needs("transactions")
    async def test_after_a_rollback_the_message_is_as_before(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await harness.write(transaction, "effect")
                await store.ack([delivery], transaction=transaction)
                raise RolledBack

        assert await harness.written() == []
        clock.advance(LEASE - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        again = await claim_one(store)
        assert (again.id, again.attempts, again.deliveries) == (delivery.id, 0, 2)

    @needs("transactions")
    async def test_after_a_rollback_the_holder_settles_as_if_nothing_had_been(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.ack([delivery], transaction=transaction)
                raise RolledBack

        assert await extend_one(store, delivery) is WriteResult.WRITTEN
        assert await settle_one(store, delivery, Retry()) is WriteResult.WRITTEN
        assert (await claim_one(store)).attempts == 1

    @needs("transactions")
    async def test_a_lease_that_expired_but_was_not_taken_over_still_acks(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        clock.advance(LEASE * 2)

        async with harness.transaction() as transaction:
            await harness.write(transaction, "effect")
            await store.hold([delivery], transaction=transaction)
            await store.ack([delivery], transaction=transaction)

        assert await harness.written() == ["effect"]
        assert await claim_all(store) == []

    @needs("transactions")
    async def test_a_worker_that_lost_the_lease_cannot_ack_and_their_writes_roll_back(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(message())
        stale = await claim_one(store)
        clock.advance(LEASE)
        holder = await claim_one(other)

        with pytest.raises(LeaseLost) as raised:
            async with harness.transaction() as transaction:
                await harness.write(transaction, "by the stale holder")
                await store.ack([stale], transaction=transaction)
        async with harness.transaction() as transaction:
            await harness.write(transaction, "by the holder")
            await other.ack([holder], transaction=transaction)

        assert raised.value.ids == (stale.id,)
        assert await harness.written() == ["by the holder"]
        assert await store.stats() == {}

    @needs("transactions")
    async def test_a_message_that_is_gone_cannot_be_acked(self, store: FullStore, harness: Harness) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        await settle_one(store, delivery, Done())

        with pytest.raises(LeaseLost):
            async with harness.transaction() as transaction:
                await harness.write(transaction, "twice")
                await store.ack([delivery], transaction=transaction)

        assert await harness.written() == []

    @needs("transactions")
    async def test_a_message_that_was_handed_back_cannot_be_acked(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        await settle_one(store, delivery, Retry())

        with pytest.raises(LeaseLost):
            async with harness.transaction() as transaction:
                await store.ack([delivery], transaction=transaction)

        assert await claim_bodies(store) == [b"hello"]

    @needs("transactions")
    async def test_an_ack_is_all_or_nothing_and_names_the_lost_ones(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        held, lost = await one_running_one_lost(store, other, clock)

        # The caller goes on and commits: even then no part of the ack may be written.
        async with harness.transaction() as transaction:
            with pytest.raises(LeaseLost) as raised:
                await store.ack([held, lost], transaction=transaction)

        assert raised.value.ids == (lost.id,)
        assert await settle_one(store, held, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    async def test_a_message_acked_under_two_tokens_at_once_is_refused(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(message())
        lost = await claim_one(store)
        clock.advance(LEASE)
        held = await claim_one(store)

        async with harness.transaction() as transaction:
            with pytest.raises(LeaseLost):
                await store.ack([lost, held], transaction=transaction)

        assert await settle_one(store, held, Done()) is WriteResult.WRITTEN

    @needs("transactions", "concurrent_writers")
    async def test_while_an_ack_is_open_the_message_is_not_taken_over(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(message(b"acked"))
        delivery = await claim_one(store)

        async with harness.transaction() as transaction:
            await store.ack([delivery], transaction=transaction)
            clock.advance(LEASE * 2)
            async with promptly():
                await store.publish(message(b"neighbour"))
                assert await claim_bodies(other) == [b"neighbour"]

        clock.advance(LEASE * 2)
        assert await claim_bodies(other) == [b"neighbour"]

    @needs("transactions", "concurrent_writers")
    async def test_once_an_ack_is_rolled_back_an_expired_message_is_taken_over(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.ack([delivery], transaction=transaction)
                clock.advance(LEASE)
                async with promptly():
                    assert await claim_all(other) == []
                raise RolledBack

        assert await claim_bodies(other) == [b"hello"]

    @needs("transactions", "concurrent_writers")
    async def test_a_renewal_meets_an_open_ack_as_busy_and_renews_the_others(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        acked, neighbour = await two_running(store)

        async with harness.transaction() as transaction:
            await store.ack([acked], transaction=transaction)
            async with promptly():
                assert await store.extend([acked, neighbour], HOUR) == [WriteResult.BUSY, WriteResult.WRITTEN]

        clock.advance(MINUTE)
        assert await claim_all(store) == []
        assert await extend_one(store, acked) is WriteResult.LOST

    @needs("transactions", "concurrent_writers")
    async def test_a_settlement_meets_an_open_ack_as_busy_and_settles_the_others(
        self, store: FullStore, harness: Harness
    ) -> None:
        acked, neighbour = await two_running(store)

        async with harness.transaction() as transaction:
            await store.ack([acked], transaction=transaction)
            async with promptly():
                results = await store.settle([Settlement(acked, Retry()), Settlement(neighbour, Done())])
                assert results == [WriteResult.BUSY, WriteResult.WRITTEN]

        assert await settle_one(store, acked, Retry()) is WriteResult.LOST
        assert await store.stats() == {}

    @needs("transactions", "concurrent_writers")
    async def test_what_was_busy_settles_once_the_ack_is_rolled_back(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.ack([delivery], transaction=transaction)
                async with promptly():
                    assert await settle_one(store, delivery, Retry()) is WriteResult.BUSY
                raise RolledBack

        assert await settle_one(store, delivery, Retry()) is WriteResult.WRITTEN
        assert (await claim_one(store)).attempts == 1

    # ------------------------------------------------------------------------------------------ hold

    @needs("transactions")
    async def test_a_held_message_is_acked_in_the_same_transaction(
        self, store: FullStore, harness: Harness
    ) -> None:
        a, b = await two_running(store)

        async with harness.transaction() as transaction:
            await store.hold([a, b], transaction=transaction)
            await harness.write(transaction, "effect")
            await store.ack([a, b], transaction=transaction)

        assert await harness.written() == ["effect"]
        assert await store.stats() == {}

    @needs("transactions")
    async def test_holding_changes_nothing_by_itself(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)

        async with harness.transaction() as transaction:
            await store.hold([delivery], transaction=transaction)

        assert await extend_one(store, delivery) is WriteResult.WRITTEN
        clock.advance(LEASE)
        again = await claim_one(store)
        assert (again.id, again.attempts, again.deliveries) == (delivery.id, 0, 2)

    @needs("transactions")
    async def test_a_worker_that_lost_the_lease_learns_it_when_holding(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        held, lost = await one_running_one_lost(store, other, clock)

        with pytest.raises(LeaseLost) as raised:
            async with harness.transaction() as transaction:
                await harness.write(transaction, "effect")
                await store.hold([lost, held], transaction=transaction)

        assert raised.value.ids == (lost.id,)
        assert await harness.written() == []
        assert await settle_one(store, held, Done()) is WriteResult.WRITTEN

    @needs("transactions", "concurrent_writers")
    async def test_while_a_message_is_held_it_is_not_taken_over_and_no_worker_waits_for_it(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        held, neighbour = await two_running(store)

        async with harness.transaction() as transaction:
            await store.hold([held], transaction=transaction)
            clock.advance(LEASE * 2)
            async with promptly():
                assert await store.extend([held, neighbour], MICROSECOND) == [
                    WriteResult.BUSY,
                    WriteResult.WRITTEN,
                ]
                clock.advance(MICROSECOND)
                assert await claim_bodies(other) == [b"b"]
            await harness.write(transaction, "effect")
            await store.ack([held], transaction=transaction)

        assert await harness.written() == ["effect"]

    @needs("transactions", "repeatable_read")
    async def test_a_caller_at_repeatable_read_acks_what_it_held_first(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        assert await extend_one(store, delivery, LEASE * 2) is WriteResult.WRITTEN

        async with harness.transaction(repeatable_read=True) as transaction:
            await store.hold([delivery], transaction=transaction)
            await harness.write(transaction, "effect")
            clock.advance(LEASE)
            async with promptly():
                assert await extend_one(store, delivery, LEASE * 2) is WriteResult.BUSY
            await store.ack([delivery], transaction=transaction)

        assert await harness.written() == ["effect"]
        assert await store.stats() == {}

    @needs("transactions", "repeatable_read")
    async def test_a_caller_at_repeatable_read_publishes_and_cancels(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish(timer("reminder", b"first"))

        async with harness.transaction(repeatable_read=True) as transaction:
            assert await store.cancel(QUEUE, "reminder", transaction=transaction) is True
            await store.publish(timer("reminder", b"second"), transaction=transaction)
            assert await store.publish(timer("reminder", b"third"), transaction=transaction) is None

        assert await claim_bodies(store) == [b"second"]

    # --------------------------------------------------------------------------------- what is refused

    @pytest.mark.parametrize("verb", EVERY_VERB_THAT_JOINS)
    async def test_what_is_no_transaction_is_refused_before_anything_is_written(
        self, store: FullStore, verb: str
    ) -> None:
        await store.publish(timer("reminder", b"first"))
        own = await claim_one(store, lease=HOUR)
        await store.publish(message(b"waiting"))

        with pytest.raises(CannotJoin):
            await EVERY_VERB_THAT_JOINS[verb](store, own, object())

        assert bodies(await store.peek()) == [b"waiting"]
        assert await settle_one(store, own, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    @pytest.mark.parametrize("verb", EVERY_VERB_THAT_JOINS)
    async def test_a_connection_outside_any_transaction_is_refused_before_anything_is_written(
        self, store: FullStore, harness: Harness, verb: str
    ) -> None:
        await store.publish(timer("reminder", b"first"))
        own = await claim_one(store, lease=HOUR)
        await store.publish(message(b"waiting"))

        async with harness.outside_any_transaction() as connection:
            with pytest.raises(NotInTransaction):
                await EVERY_VERB_THAT_JOINS[verb](store, own, connection)

        assert bodies(await store.peek()) == [b"waiting"]
        assert await settle_one(store, own, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    async def test_a_transaction_that_has_ended_is_refused(self, store: FullStore, harness: Harness) -> None:
        async with harness.transaction() as transaction:
            await store.publish(message(b"in time"), transaction=transaction)

        with pytest.raises((CannotJoin, NotInTransaction)):
            await store.publish(message(b"too late"), transaction=transaction)

        assert await claim_bodies(store) == [b"in time"]
