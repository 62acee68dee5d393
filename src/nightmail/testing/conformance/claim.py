"""What a claim takes, in which order, and when it says to look again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from nightmail.message import Delivery
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import Claimed, FullStore
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
    fresh_token,
    message,
    needs,
    promptly,
    settle_one,
    stored,
    timer,
)
from nightmail.testing.conformance.harness import Harness, RolledBack


class ClaimConformance:
    """Claiming: order, limit, queues, concurrency, and the time of the next look."""

    # ---------------------------------------------------------------------------------------- order

    async def test_messages_come_by_due_time_whatever_the_order_of_publishing(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"third", due=SECOND * 3))
        await store.publish(message(b"first", due=SECOND))
        await store.publish(message(b"second", due=SECOND * 2))
        clock.advance(MINUTE)

        assert await claim_bodies(store) == [b"first", b"second", b"third"]

    async def test_messages_due_at_the_same_moment_come_in_the_order_of_their_ids(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        moment = clock.now() + MINUTE
        ids = [await stored(store, message(due=moment)) for _ in range(12)]
        clock.advance(MINUTE)

        deliveries = await claim_all(store)

        assert [delivery.id for delivery in deliveries] == ids

    async def test_priority_goes_before_due_time_and_due_time_before_id(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"low, early", due=SECOND))
        await store.publish(message(b"high, late", due=SECOND * 3, priority=5))
        await store.publish(message(b"high, early", due=SECOND * 2, priority=5))
        await store.publish(message(b"high, early, next id", due=SECOND * 2, priority=5))
        await store.publish(message(b"low, late", due=SECOND * 4))
        clock.advance(MINUTE)

        assert await claim_bodies(store, limit=5) == [
            b"high, early",
            b"high, early, next id",
            b"high, late",
            b"low, early",
            b"low, late",
        ]

    async def test_messages_taken_one_at_a_time_come_in_the_same_order(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for seconds in (4, 1, 5, 3, 2):
            await store.publish(message(b"%d" % seconds, due=SECOND * seconds))
        clock.advance(MINUTE)

        seen = [await claim_bodies(store, limit=1) for _ in range(6)]

        assert seen == [[b"1"], [b"2"], [b"3"], [b"4"], [b"5"], []]

    # ---------------------------------------------------------------------------------------- limit

    async def test_a_claim_takes_no_more_than_its_limit(self, store: FullStore) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(5)])

        assert await claim_bodies(store, limit=2) == [b"0", b"1"]
        assert await claim_bodies(store, limit=2) == [b"2", b"3"]
        assert await claim_bodies(store, limit=2) == [b"4"]
        assert await claim_bodies(store, limit=2) == []

    async def test_a_claim_takes_all_there_is_when_the_limit_allows(self, store: FullStore) -> None:
        ids = await store.publish_batch([message() for _ in range(700)])

        deliveries = await claim_all(store, limit=1000)

        assert [delivery.id for delivery in deliveries] == ids

    async def test_a_claim_with_a_limit_of_nothing_takes_nothing(self, store: FullStore) -> None:
        await store.publish(message())

        assert await claim_all(store, limit=0) == []

        assert (await claim_one(store)).deliveries == 1

    async def test_a_claim_of_an_empty_store_is_empty(self, store: FullStore) -> None:
        assert await claim_all(store) == []

    # --------------------------------------------------------------------------------------- queues

    async def test_a_claim_takes_from_the_queues_it_names_and_from_no_other(self, store: FullStore) -> None:
        for queue in ("orders", "refunds", "mail"):
            await store.publish(message(queue.encode(), queue=queue))

        assert sorted(await claim_bodies(store, "orders", "mail")) == [b"mail", b"orders"]
        assert await claim_bodies(store, "refunds") == [b"refunds"]

    async def test_a_claim_of_no_queue_takes_nothing_and_expects_nothing(self, store: FullStore) -> None:
        await store.publish(message())
        await store.publish(message(due=HOUR))

        claimed = await store.claim([], limit=10, lease=LEASE, token=fresh_token())

        assert list(claimed.deliveries) == []
        assert claimed.next_in is None
        assert (await claim_one(store)).deliveries == 1

    async def test_a_queue_named_twice_is_one_queue(self, store: FullStore) -> None:
        ids = await store.publish_batch([message(), message(), message()])

        deliveries = await claim_all(store, QUEUE, QUEUE, limit=10)

        assert [delivery.id for delivery in deliveries] == ids
        assert [delivery.deliveries for delivery in deliveries] == [1, 1, 1]

    async def test_queues_are_served_in_rotation_when_one_message_is_taken_at_a_time(
        self, store: FullStore
    ) -> None:
        queues = ("orders", "refunds", "mail")
        for queue in queues:
            await store.publish_batch([message(queue=queue) for _ in range(4)])

        seen = [(await claim_all(store, *queues, limit=1))[0].queue for _ in range(12)]

        for turn in range(0, 12, 3):
            assert sorted(seen[turn : turn + 3]) == ["mail", "orders", "refunds"]

    async def test_a_busy_queue_does_not_keep_a_quiet_one_waiting(self, store: FullStore) -> None:
        await store.publish_batch([message(queue="busy") for _ in range(100)])
        await store.publish(message(b"quiet", queue="quiet"))

        first = await claim_bodies(store, "busy", "quiet", limit=10)
        second = await claim_bodies(store, "busy", "quiet", limit=10)

        assert b"quiet" in first + second

    async def test_a_claim_of_several_queues_is_filled_from_all_of_them(self, store: FullStore) -> None:
        for queue in ("orders", "refunds", "mail"):
            await store.publish_batch([message(queue=queue) for _ in range(3)])

        deliveries = await claim_all(store, "orders", "refunds", "mail", limit=9)

        assert sorted(delivery.queue for delivery in deliveries) == [
            *["mail"] * 3,
            *["orders"] * 3,
            *["refunds"] * 3,
        ]

    async def test_a_claim_may_name_many_queues(self, store: FullStore) -> None:
        queues = [f"queue {number}" for number in range(120)]
        await store.publish_batch([message(queue=queue) for queue in queues])

        deliveries = await claim_all(store, *queues, limit=200)

        assert sorted(delivery.queue for delivery in deliveries) == sorted(queues)

    async def test_a_claim_of_several_queues_keeps_to_one_limit(self, store: FullStore) -> None:
        for queue in ("orders", "refunds", "mail"):
            await store.publish_batch([message(queue=queue) for _ in range(3)])

        first = await claim_all(store, "orders", "refunds", "mail", limit=4)
        rest = await claim_all(store, "orders", "refunds", "mail", limit=100)

        # What the limit left out was not claimed and dropped: it is there for the next claim, with no delivery counted.
        assert len(first) == 4
        assert len(rest) == 5
        assert {delivery.deliveries for delivery in rest} == {1}

    # ---------------------------------------------------------------------------- what a claim returns

    async def test_every_delivery_of_a_claim_carries_its_token(self, store: FullStore) -> None:
        await store.publish_batch([message() for _ in range(3)])
        token = fresh_token()

        deliveries = await claim_all(store, token=token)

        assert [delivery.token for delivery in deliveries] == [token] * 3

    async def test_a_delivery_tells_when_it_was_published_due_and_claimed(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        start = clock.now()
        await store.publish(message(due=MINUTE, expires_in=HOUR))
        clock.advance(MINUTE + SECOND + MICROSECOND)

        delivery = await claim_one(store)

        assert delivery.published_at == start
        assert delivery.due_at == start + MINUTE
        assert delivery.claimed_at == start + MINUTE + SECOND + MICROSECOND
        assert delivery.expires_at == start + HOUR

    async def test_the_first_claim_is_the_first_delivery_and_the_first_attempt(
        self, store: FullStore
    ) -> None:
        await store.publish(message())

        delivery = await claim_one(store)

        assert (delivery.deliveries, delivery.attempts, delivery.attempt) == (1, 0, 1)
        assert delivery.superseded is False

    async def test_a_message_past_its_expiry_is_handed_out_like_any_other(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        expires_at = clock.now() + SECOND * 10
        await store.publish(message(b"too late", expires_in=SECOND * 10))
        clock.advance(HOUR)

        delivery = await claim_one(store)

        assert delivery.body == b"too late"
        assert delivery.expires_at == expires_at

    # ------------------------------------------------------------------------------------ never early

    async def test_a_message_is_claimed_at_the_microsecond_it_is_due_and_not_before(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(due=SECOND))

        clock.advance(SECOND - MICROSECOND)
        assert await claim_all(store) == []

        clock.advance(MICROSECOND)
        assert len(await claim_all(store)) == 1

    async def test_what_is_not_due_is_never_handed_out_while_the_clock_goes_on(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        start = clock.now()
        for milliseconds in (1, 999, 1000, 1001, 1500, 2999, 3000, 3001, 60_000):
            await store.publish(message(due=timedelta(milliseconds=milliseconds), priority=milliseconds % 10))

        seen: list[tuple[int, int]] = []
        for second in range(1, 5):
            clock.advance(SECOND)
            deliveries = await claim_all(store)
            seen.append((second, len(deliveries)))
            assert all(delivery.due_at <= start + SECOND * second for delivery in deliveries)

        assert seen == [(1, 3), (2, 2), (3, 2), (4, 1)]

    # -------------------------------------------------------------------------------------- next_in

    async def test_an_empty_store_expects_nothing(self, store: FullStore) -> None:
        assert (await look(store)).next_in is None

    async def test_the_next_look_is_worth_it_exactly_when_the_next_message_is_due(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(due=timedelta(seconds=90, microseconds=7)))
        await store.publish(message(due=HOUR))

        assert (await look(store)).next_in == timedelta(seconds=90, microseconds=7)

        clock.advance(timedelta(seconds=90))
        assert (await look(store)).next_in == timedelta(microseconds=7)

    async def test_sleeping_exactly_as_long_as_told_finds_the_message(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"due", due=timedelta(seconds=1, microseconds=333_333)))

        next_in = (await look(store)).next_in
        assert next_in is not None
        clock.advance(next_in)

        assert await claim_bodies(store) == [b"due"]

    async def test_the_next_look_considers_every_priority(self, store: FullStore) -> None:
        await store.publish(message(due=HOUR, priority=9))
        await store.publish(message(due=MINUTE, priority=4))
        await store.publish(message(due=HOUR * 2, priority=0))

        assert (await look(store)).next_in == MINUTE

    async def test_the_next_look_considers_every_queue_of_the_claim_and_no_other(
        self, store: FullStore
    ) -> None:
        await store.publish(message(due=MINUTE * 3, queue="orders"))
        await store.publish(message(due=MINUTE * 2, queue="refunds"))
        await store.publish(message(due=MINUTE, queue="mail"))

        assert (await look(store, "orders", "refunds")).next_in == MINUTE * 2
        assert (await look(store, "orders")).next_in == MINUTE * 3
        assert (await look(store, "nothing")).next_in is None

    async def test_the_next_look_is_worth_it_when_a_lease_expires(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(), message()])
        await claim_all(store, limit=1, lease=SECOND * 40)
        await claim_all(store, limit=1, lease=SECOND * 20)

        assert (await look(other)).next_in == SECOND * 20

        clock.advance(SECOND * 5)
        assert (await look(other)).next_in == SECOND * 15

    async def test_a_lease_in_another_queue_is_not_waited_for(self, store: FullStore) -> None:
        await store.publish(message(queue="refunds"))
        await claim_one(store, "refunds")

        assert (await look(store, "orders")).next_in is None

    async def test_whatever_comes_first_decides_a_due_time_or_a_lease(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish(message())
        await claim_one(store, lease=SECOND * 20)
        await store.publish(message(due=SECOND * 30))
        assert (await look(other)).next_in == SECOND * 20

        await store.publish(message(due=SECOND * 10))
        assert (await look(other)).next_in == SECOND * 10

    async def test_an_extended_lease_is_waited_for_until_its_new_end(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store, lease=SECOND * 20)
        await store.extend([delivery], SECOND * 50)

        assert (await look(other)).next_in == SECOND * 50

    async def test_a_settled_message_is_not_waited_for(self, store: FullStore) -> None:
        await store.publish(message())
        await settle_one(store, await claim_one(store), Done())

        assert (await look(store)).next_in is None

    async def test_a_retried_message_is_waited_for_until_it_is_due(self, store: FullStore) -> None:
        await store.publish(message())
        await settle_one(store, await claim_one(store), Retry(SECOND * 7))

        assert (await look(store)).next_in == SECOND * 7

    async def test_a_claim_that_took_something_but_was_not_full_tells_what_comes_next(
        self, store: FullStore
    ) -> None:
        await store.publish(message(b"now"))
        await store.publish(message(b"later", due=SECOND * 10))

        claimed = await look(store, limit=10, lease=MINUTE)

        assert bodies(claimed.deliveries) == [b"now"]
        assert claimed.next_in == SECOND * 10

    async def test_the_leases_a_claim_took_itself_are_among_what_comes_next(self, store: FullStore) -> None:
        await store.publish(message(b"now"))
        await store.publish(message(b"later", due=HOUR))

        claimed = await look(store, limit=10, lease=MINUTE)

        assert bodies(claimed.deliveries) == [b"now"]
        assert claimed.next_in == MINUTE

    async def test_a_full_claim_says_look_again_at_once(self, store: FullStore) -> None:
        await store.publish_batch([message() for _ in range(3)])
        await store.publish(message(due=SECOND * 10))

        claimed = await look(store, limit=3)

        assert len(claimed.deliveries) == 3
        assert claimed.next_in is None

    async def test_the_claim_after_a_full_one_knows_what_comes_next(self, store: FullStore) -> None:
        await store.publish_batch([message() for _ in range(3)])
        await store.publish(message(due=SECOND * 10))
        await look(store, limit=3, lease=MINUTE)

        claimed = await look(store, limit=3, lease=MINUTE)

        assert list(claimed.deliveries) == []
        assert claimed.next_in == SECOND * 10

    async def test_a_message_that_was_cancelled_is_not_waited_for(self, store: FullStore) -> None:
        await store.publish(timer("reminder", due=MINUTE))
        await store.publish(message(due=HOUR))
        await store.cancel(QUEUE, "reminder")

        assert (await look(store)).next_in == HOUR

    # ---------------------------------------------------------------------------------- concurrency

    async def test_concurrent_claims_share_the_messages_without_overlap(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        ids = await store.publish_batch([message(priority=number % 3) for number in range(60)])

        async with promptly():
            taken = await asyncio.gather(*(drain(worker) for worker in (store, other, store, other)))
        # A claim may skip rows that another claim is taking; a second later it may not.
        clock.advance(SECOND)
        taken.append(await claim_all(store))

        assert sorted(delivery.id for part in taken for delivery in part) == sorted(ids)

    async def test_concurrent_claims_of_one_message_give_it_to_one_of_them(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        for _ in range(10):
            await store.publish(message())

            async with promptly():
                taken = await asyncio.gather(*(claim_all(worker) for worker in (store, other, store, other)))
            clock.advance(SECOND)
            taken.append(await claim_all(store))

            (delivery,) = [delivery for part in taken for delivery in part]
            assert delivery.deliveries == 1
            await settle_one(store, delivery, Done())

    async def test_concurrent_claims_of_many_queues_share_them_without_overlap(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        queues = ("orders", "refunds", "mail")
        ids = await store.publish_batch([message(queue=queues[number % 3]) for number in range(45)])

        async with promptly():
            mine, theirs = await asyncio.gather(drain(store, *queues), drain(other, *reversed(queues)))
        clock.advance(SECOND)
        rest = await claim_all(store, *queues)

        assert sorted(delivery.id for delivery in [*mine, *theirs, *rest]) == sorted(ids)

    @needs("transactions", "concurrent_writers")
    async def test_a_claim_passes_over_what_an_open_transaction_has_locked(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        await store.publish(timer("locked", b"locked"))
        await store.publish(message(b"free"))

        async with harness.transaction() as transaction:
            assert await store.cancel(QUEUE, "locked", transaction=transaction)

            async with promptly():
                assert await claim_bodies(other) == [b"free"]
                assert await claim_bodies(store) == []

        assert await claim_bodies(store) == []

    @needs("transactions", "concurrent_writers")
    async def test_what_an_open_transaction_locked_is_not_counted_as_delivered(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(timer("locked"))

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.cancel(QUEUE, "locked", transaction=transaction)
                async with promptly():
                    assert await claim_all(store) == []
                raise RolledBack
        clock.advance(SECOND)

        assert (await claim_one(store)).deliveries == 1

    # --------------------------------------------------------------------------------------- recall

    async def test_recall_hands_back_what_a_token_took_and_nothing_else(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(4)])
        lost_reply = fresh_token()
        (running,) = await claim_all(store, limit=1)
        await claim_all(store, limit=2, token=lost_reply)

        assert await other.recall([QUEUE], lost_reply) == 2
        assert await other.recall([QUEUE], lost_reply) == 0

        assert await claim_bodies(store) == [b"1", b"2", b"3"]
        assert await settle_one(store, running, Done()) == "written"

    async def test_a_recalled_message_is_as_it_was_before_the_claim(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(
            timer(
                "reminder",
                b"all of it",
                headers={"trace": "abc"},
                due=SECOND,
                expires_in=HOUR,
                ordering_key="customer-7",
                priority=4,
            )
        )
        clock.advance(SECOND * 2)
        await settle_one(store, await claim_one(store), Retry(SECOND))
        clock.advance(SECOND)
        claimed = await claim_one(store)

        assert await store.recall([QUEUE], claimed.token) == 1

        again = await claim_one(store)
        assert values(again) | {"token": None} == values(claimed) | {"token": None}

    async def test_who_was_recalled_has_lost_the_lease(self, store: FullStore) -> None:
        await store.publish(message())
        late = await claim_one(store)

        await store.recall([QUEUE], late.token)

        assert await settle_one(store, late, Done()) == "lost"
        assert len(await claim_all(store)) == 1

    async def test_recall_keeps_what_earlier_lost_leases_counted(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        second = await claim_one(store)

        await store.recall([QUEUE], second.token)

        assert (await claim_one(store)).deliveries == 2

    async def test_a_recalled_message_holds_its_ordering_key(self, store: FullStore) -> None:
        await store.publish_batch([message(b"head", ordering_key="k"), message(b"next", ordering_key="k")])
        token = fresh_token()
        await claim_one(store, token=token)

        await store.recall([QUEUE], token)

        assert (await claim_one(store)).body == b"head"

    async def test_recall_of_an_unused_token_changes_nothing(self, store: FullStore) -> None:
        await store.publish_batch([message(b"running"), message(b"waiting")])
        (running,) = await claim_all(store, limit=1)

        assert await store.recall([QUEUE], fresh_token()) == 0

        assert (await claim_one(store)).deliveries == 1
        assert await settle_one(store, running, Done()) == "written"

    async def test_recall_looks_only_into_the_queues_it_names(self, store: FullStore) -> None:
        token = fresh_token()
        for queue in ("orders", "refunds", "mail"):
            await store.publish(message(queue.encode(), queue=queue))
        await claim_all(store, "orders", "refunds", "mail", token=token)

        assert await store.recall([], token) == 0
        assert await store.recall(["orders", "mail"], token) == 2

        assert sorted(await claim_bodies(store, "orders", "refunds", "mail")) == [b"mail", b"orders"]

    async def test_recall_leaves_what_was_taken_over_or_settled(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(3)])
        token = fresh_token()
        first, _, _ = await claim_all(store, token=token, lease=LEASE)
        await settle_one(store, first, Retry(HOUR))
        clock.advance(LEASE)
        (taken_over,) = await claim_all(store, limit=1)

        assert await store.recall([QUEUE], token) == 1

        assert await settle_one(store, taken_over, Done()) == "written"
        assert await claim_bodies(store) == [b"2"]

    async def test_recall_hands_back_thousands_among_as_many_of_others(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        token = fresh_token()
        await store.publish_batch([message(b"%d" % number) for number in range(3_600)])
        before = await claim_all(other, limit=1_200, lease=LEASE)
        clock.advance(SECOND)
        assert len(await claim_all(store, limit=1_200, lease=LEASE, token=token)) == 1_200
        clock.advance(SECOND)
        after = await claim_all(other, limit=1_200, lease=LEASE)

        assert await store.recall([QUEUE], token) == 1_200

        again = await claim_all(store, limit=3_600)
        assert [(each.body, each.deliveries) for each in again] == [
            (b"%d" % number, 1) for number in range(1_200, 2_400)
        ]
        assert set(await other.extend([*before, *after], LEASE)) == {WriteResult.WRITTEN}


async def look(store: FullStore, *queues: str, limit: int = 10, lease: timedelta = LEASE) -> Claimed:
    """One claim of these queues (by default the usual one), with its whole result."""
    return await store.claim(queues or (QUEUE,), limit=limit, lease=lease, token=fresh_token())


async def drain(store: FullStore, *queues: str) -> Sequence[Delivery]:
    """Claim in small batches until nothing is left."""
    taken: list[Delivery] = []
    while batch := await claim_all(store, *queues, limit=7):
        taken += batch
    return taken


def values(delivery: Delivery) -> dict[str, Any]:
    """A delivery as a dictionary: two delivery objects never compare equal."""
    return {field.name: getattr(delivery, field.name) for field in fields(delivery)}
