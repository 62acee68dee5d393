"""Settling many at once: written together, answered in order, repeated without harm."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement
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
    needs,
    only_letter,
    promptly,
    settle_one,
)
from nightmail.testing.conformance.harness import Harness, RolledBack
from nightmail.testing.conformance.lease import every_outcome


class SettleBatchConformance:
    """Settling: batches, their answers, repeated settlements."""

    async def test_a_batch_of_nothing_answers_nothing(self, store: FullStore) -> None:
        assert list(await store.settle([])) == []

    async def test_a_mixed_batch_is_written_at_once_and_answered_in_order(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        names = (b"done", b"retry", b"postpone", b"dead", b"release", b"lost")
        await store.publish_batch([message(name) for name in names])
        held = {delivery.body: delivery for delivery in await claim_all(store, lease=LEASE)}
        await store.extend([delivery for body, delivery in held.items() if body != b"lost"], HOUR)
        clock.advance(LEASE)
        successor = await claim_one(other, lease=HOUR)
        assert successor.body == b"lost"

        results = await store.settle(
            [
                Settlement(held[b"release"], Release()),
                Settlement(held[b"dead"], Dead("rejected", "no")),
                Settlement(held[b"lost"], Done()),
                Settlement(held[b"postpone"], Postpone(MINUTE * 2)),
                Settlement(held[b"done"], Done()),
                Settlement(held[b"retry"], Retry(MINUTE)),
            ]
        )

        yes, no = WriteResult.WRITTEN, WriteResult.LOST
        assert list(results) == [yes, yes, no, yes, yes, yes]
        released = await claim_one(store, lease=HOUR)
        assert (released.body, released.deliveries, released.attempts) == (b"release", 1, 0)
        assert (await only_letter(store)).body == b"dead"
        clock.advance(MINUTE)
        retried = await claim_one(store, lease=HOUR)
        assert (retried.body, retried.deliveries, retried.attempts) == (b"retry", 1, 1)
        clock.advance(MINUTE)
        postponed = await claim_one(store, lease=HOUR)
        assert (postponed.body, postponed.deliveries, postponed.attempts) == (b"postpone", 1, 0)
        assert await settle_one(other, successor, Done()) is WriteResult.WRITTEN

    async def test_a_large_batch_of_every_outcome_is_answered_in_order(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        outcomes: list[Outcome] = [Done(), Retry(MINUTE), Postpone(MINUTE), Dead("rejected"), Release()]
        await store.publish_batch([message(b"%d" % (number % 5)) for number in range(500)])
        deliveries = await claim_all(store, limit=500)
        # In whatever order they finished.
        random.Random(7).shuffle(deliveries)  # noqa: S311 - a fixed seed, not a secret

        results = await store.settle(
            [Settlement(delivery, outcomes[int(delivery.body)]) for delivery in deliveries]
        )

        assert list(results) == [WriteResult.WRITTEN] * 500
        assert await claim_bodies(store, limit=500, lease=HOUR) == [b"4"] * 100
        assert bodies(await store.dead(DeadFilter(), limit=500)) == [b"3"] * 100
        clock.advance(MINUTE)
        later = await claim_all(store, limit=500)
        assert sorted((delivery.body, delivery.attempts) for delivery in later) == [
            *[(b"1", 1)] * 100,
            *[(b"2", 0)] * 100,
        ]

    @pytest.mark.parametrize("late_first", [True, False], ids=["late first", "late last"])
    async def test_a_late_and_a_good_lease_on_one_message_in_one_batch_are_told_apart(
        self, store: FullStore, clock: ManualClock, late_first: bool
    ) -> None:
        await store.publish(message())
        late = await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        good = await claim_one(store, lease=LEASE)

        batch = [Settlement(late, Done()), Settlement(good, Retry())]
        results = await store.settle(batch if late_first else batch[::-1])

        lost, held = WriteResult.LOST, WriteResult.WRITTEN
        assert list(results) == ([lost, held] if late_first else [held, lost])
        assert (await claim_one(store)).attempts == 1

    async def test_a_delivery_that_is_in_a_batch_twice_is_settled_once(self, store: FullStore) -> None:
        await store.publish_batch([message(b"twice"), message(b"neighbour")])
        twice, neighbour = await claim_all(store)

        results = await store.settle(
            [Settlement(twice, Retry()), Settlement(neighbour, Done()), Settlement(twice, Retry())]
        )

        assert list(results[:2]) == [WriteResult.WRITTEN, WriteResult.WRITTEN]
        assert (await claim_one(store)).attempts == 1

    async def test_a_delay_past_the_end_of_time_fails_no_neighbour_and_loses_nothing(
        self, store: FullStore
    ) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(4)])
        first, odd, third, last = await claim_all(store)

        results = await store.settle(
            [
                Settlement(first, Done()),
                Settlement(odd, Retry(timedelta.max)),
                Settlement(third, Dead("rejected")),
                Settlement(last, Done()),
            ]
        )

        assert [results[0], results[2], results[3]] == [WriteResult.WRITTEN] * 3
        assert (await only_letter(store)).body == b"2"
        left = (await store.stats())[QUEUE]
        assert (left.scheduled + left.running, left.ready, left.dead) == (1, 0, 1)

    async def test_messages_of_several_queues_and_claims_settle_in_one_batch(self, store: FullStore) -> None:
        for queue in ("orders", "refunds", "mail"):
            await store.publish(message(queue.encode(), queue=queue))
        deliveries: list[Delivery] = []
        for queue in ("mail", "orders", "refunds"):
            deliveries += await claim_all(store, queue)

        results = await store.settle([Settlement(delivery, Retry()) for delivery in deliveries])

        assert list(results) == [WriteResult.WRITTEN] * 3
        again = await claim_all(store, "orders", "refunds", "mail")
        assert sorted((delivery.queue, delivery.attempts) for delivery in again) == [
            ("mail", 1),
            ("orders", 1),
            ("refunds", 1),
        ]

    @every_outcome
    async def test_a_second_settlement_is_lost_and_changes_nothing(
        self, store: FullStore, clock: ManualClock, outcome: Outcome
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        assert await settle_one(store, delivery, outcome) is WriteResult.WRITTEN
        waiting, letters = await store.peek(), await store.dead(DeadFilter())
        clock.advance(SECOND)

        for second in (Done(), Retry(HOUR), Postpone(HOUR), Dead("again"), Release()):
            assert await settle_one(store, delivery, second) is WriteResult.LOST

        assert await store.peek() == waiting
        assert await store.dead(DeadFilter()) == letters

    async def test_a_repeated_settlement_of_a_message_that_is_gone_is_unknown_and_not_lost(
        self, store: FullStore
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        await settle_one(store, delivery, Done())

        assert await settle_one(store, delivery, Done(), repeated=True) is WriteResult.UNKNOWN
        assert await settle_one(store, delivery, Done()) is WriteResult.LOST

    async def test_a_repeated_settlement_that_was_carried_out_before_is_not_carried_out_twice(
        self, store: FullStore
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        await settle_one(store, delivery, Retry())

        assert await settle_one(store, delivery, Retry(), repeated=True) is WriteResult.UNKNOWN

        assert (await claim_one(store)).attempts == 1

    async def test_a_repeated_settlement_of_a_dead_message_makes_no_second_letter(
        self, store: FullStore
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        await settle_one(store, delivery, Dead("rejected"))

        assert await settle_one(store, delivery, Dead("rejected"), repeated=True) is WriteResult.UNKNOWN

        assert len(await store.dead(DeadFilter())) == 1

    async def test_a_repeated_settlement_that_had_not_arrived_is_carried_out(self, store: FullStore) -> None:
        await store.publish(message())
        delivery = await claim_one(store)

        assert await settle_one(store, delivery, Done(), repeated=True) is WriteResult.WRITTEN

        assert await store.stats() == {}

    async def test_in_one_batch_only_the_repeated_settlement_is_unknown(self, store: FullStore) -> None:
        await store.publish_batch([message(), message(), message()])
        first, second, third = await claim_all(store)
        await store.settle([Settlement(first, Done()), Settlement(second, Done())])

        results = await store.settle(
            [
                Settlement(first, Done(), repeated=True),
                Settlement(second, Done()),
                Settlement(third, Done(), repeated=True),
            ]
        )

        assert list(results) == [WriteResult.UNKNOWN, WriteResult.LOST, WriteResult.WRITTEN]

    @needs("transactions", "concurrent_writers")
    async def test_a_row_that_a_transaction_has_locked_is_busy_and_holds_up_no_other(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(4)])
        first, locked, third, last = await claim_all(store)

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.hold([locked], transaction=transaction)

                async with promptly():
                    results = await store.settle(
                        [
                            Settlement(first, Done()),
                            Settlement(locked, Done()),
                            Settlement(third, Retry(HOUR)),
                            Settlement(last, Dead("rejected")),
                        ]
                    )
                raise RolledBack

        held, busy = WriteResult.WRITTEN, WriteResult.BUSY
        assert list(results) == [held, busy, held, held]
        assert (await only_letter(store)).body == b"3"
        assert await settle_one(store, locked, Done(), repeated=True) is WriteResult.WRITTEN
