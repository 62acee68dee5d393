"""Nothing stays hidden behind the point that claims have already reached.

A claim may start where the last one found something: that keeps it fast over rows just deleted. What becomes
available further back must still be found: within a second while there is a backlog, at once when there is none.
"""

from __future__ import annotations

import pytest

from nightmail.message import Delivery
from nightmail.outcome import Done, Postpone, Release, Retry
from nightmail.store import FullStore, Settlement
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
    settle_one,
    timer,
)
from nightmail.testing.conformance.harness import Harness, RolledBack

BATCH = 10


class OverlookedConformance:
    """Looking: late commits, expired leases and clocks that step back, under load."""

    # ---------------------------------------------------------------------------------- late commits

    @needs("transactions", "concurrent_writers")
    async def test_what_commits_late_is_found_within_a_second_of_load(
        self, store: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish_batch([message(b"late") for _ in range(5)], transaction=transaction)
            clock.advance(SECOND)
            await publish_backlog(store, 100)
            await work_off(store, batches=4)

        before = await work_off(store, batches=1)
        clock.advance(SECOND)
        after = await work_off(store, batches=1)

        assert bodies(before + after).count(b"late") == 5

    @needs("transactions", "concurrent_writers")
    async def test_a_late_commit_larger_than_a_batch_does_not_wait_a_second_for_every_batch(
        self, store: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish_batch([message(b"late") for _ in range(35)], transaction=transaction)
            clock.advance(SECOND)
            await publish_backlog(store, 200)
            await work_off(store, batches=4)

        clock.advance(SECOND)
        found = await work_off(store, batches=4)

        assert bodies(found).count(b"late") == 35

    @needs("transactions", "concurrent_writers")
    async def test_what_commits_late_is_found_at_once_when_the_backlog_ends(
        self, store: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish_batch([message(b"late") for _ in range(5)], transaction=transaction)
            clock.advance(SECOND)
            await publish_backlog(store, 43)
            await work_off(store, batches=3)

        # 13 of the backlog are left, and 5 came late: two batches, in either order.
        found = await work_off(store, batches=2)

        assert sorted(bodies(found)) == [*[b"backlog"] * 13, *[b"late"] * 5]

    @needs("transactions", "concurrent_writers")
    async def test_what_commits_late_is_found_by_an_idle_store_at_once(
        self, store: FullStore, other: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish(message(b"late"), transaction=transaction)
            clock.advance(SECOND)
            await publish_backlog(store, 20)
            await work_off(store, batches=2)
            assert await claim_all(store) == []

        assert await claim_bodies(store) == [b"late"]

    @needs("transactions", "concurrent_writers")
    async def test_what_commits_late_in_a_lower_priority_is_found_at_once_when_the_backlog_ends(
        self, store: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish(message(b"late, low", priority=1), transaction=transaction)
            await store.publish(message(b"late, high", priority=8), transaction=transaction)
            clock.advance(SECOND)
            await store.publish_batch([message(b"low", priority=1) for _ in range(10)])
            await store.publish_batch([message(b"high", priority=8) for _ in range(25)])
            await work_off(store, batches=3)

        found = await work_off(store, batches=1)

        assert sorted(bodies(found)) == [b"late, high", b"late, low", *[b"low"] * 5]

    @needs("transactions", "concurrent_writers")
    async def test_what_commits_late_in_a_low_priority_gets_the_share_of_the_oldest_within_a_second(
        self, store: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish(message(b"late, low", priority=1), transaction=transaction)
            clock.advance(SECOND)
            await store.publish_batch([message(b"high", priority=8) for _ in range(100)])
            await work_off(store, batches=4)

        before = await work_off(store, batches=1)
        clock.advance(SECOND)
        after = await work_off(store, batches=1)

        assert b"late, low" in bodies(before + after)

    @needs("transactions", "concurrent_writers")
    async def test_what_a_rolled_back_cancel_had_locked_is_found_within_a_second_of_load(
        self, store: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        await store.publish(timer("kept", b"kept after all"))
        clock.advance(SECOND)
        await publish_backlog(store, 100)
        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                assert await store.cancel(QUEUE, "kept", transaction=transaction)
                await work_off(store, batches=3)
                raise RolledBack

        clock.advance(SECOND)

        assert b"kept after all" in bodies(await work_off(store, batches=1))

    @needs("transactions", "concurrent_writers")
    async def test_each_of_two_stores_finds_what_committed_late(
        self, store: FullStore, other: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            await store.publish_batch([message(b"late") for _ in range(4)], transaction=transaction)
            clock.advance(SECOND)
            await publish_backlog(store, 100)
            await work_off(store, batches=2)
            await work_off(other, batches=2)

        clock.advance(SECOND)
        first = await claim_all(store, limit=2)
        second = await claim_all(other, limit=2)

        assert bodies(first + second) == [b"late"] * 4

    # ---------------------------------------------------------------------- what becomes available again

    async def test_an_expired_lease_is_found_within_a_second_of_load(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"its worker died"))
        await claim_one(other, lease=LEASE)
        clock.advance(LEASE - SECOND)
        await publish_backlog(store, 100)
        await work_off(store, batches=4)

        clock.advance(SECOND)
        before = await work_off(store, batches=1)
        clock.advance(SECOND)
        after = await work_off(store, batches=1)

        assert b"its worker died" in bodies(before + after)

    async def test_an_expired_lease_is_found_at_once_when_the_backlog_ends(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"its worker died"))
        await claim_one(other, lease=LEASE)
        clock.advance(LEASE)
        await publish_backlog(store, 25)

        found = await work_off(store, batches=3)

        assert bodies(found).count(b"its worker died") == 1

    async def test_a_lease_further_back_than_the_last_claim_is_still_waited_for(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"long running"))
        await claim_one(other, lease=LEASE)
        clock.advance(SECOND)
        await publish_backlog(store, 25)
        await work_off(store, batches=3)

        claimed = await store.claim([QUEUE], limit=BATCH, lease=LEASE, token=fresh_token())

        assert list(claimed.deliveries) == []
        assert claimed.next_in == LEASE - SECOND

    async def test_a_released_message_is_found_within_a_second_of_load(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"handed back"))
        delivery = await claim_one(other, lease=HOUR)
        clock.advance(SECOND)
        await publish_backlog(store, 30)
        await work_off(store, batches=2)

        await settle_one(other, delivery, Release())

        assert b"handed back" in bodies(await work_off(store, batches=2))

    async def test_a_retried_and_a_postponed_message_are_found_when_they_are_due(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"retried"), message(b"postponed")])
        retried, postponed = await claim_all(other, lease=HOUR)
        clock.advance(SECOND)
        await publish_backlog(store, 200)
        await work_off(store, batches=4)

        await other.settle([Settlement(retried, Retry(SECOND)), Settlement(postponed, Postpone(SECOND))])

        clock.advance(SECOND)
        # They joined the line at its end: earlier due times go first.
        found = await work_off(store, batches=17)
        assert bodies(found) == [*[b"backlog"] * 160, b"retried", b"postponed"]

    async def test_what_waited_behind_the_head_of_its_key_is_found_within_a_second_of_load(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"head", ordering_key="k"), message(b"next", ordering_key="k")])
        head = await claim_one(other, lease=HOUR)
        clock.advance(SECOND)
        await publish_backlog(store, 100)
        await work_off(store, batches=4)

        await settle_one(other, head, Done())

        before = await work_off(store, batches=1)
        clock.advance(SECOND)
        after = await work_off(store, batches=1)
        assert b"next" in bodies(before + after)

    async def test_messages_that_become_due_while_a_backlog_is_worked_off_come_in_their_order(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await publish_backlog(store, 25)
        await store.publish(message(b"soon", due=SECOND))
        await store.publish(message(b"sooner", due=SECOND / 2))
        await work_off(store, batches=1)

        clock.advance(SECOND)

        assert bodies(await work_off(store, batches=2)) == [*[b"backlog"] * 15, b"sooner", b"soon"]

    async def test_a_timer_moved_forward_is_found_within_a_second_of_load(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("moved", b"moved", due=HOUR))
        await publish_backlog(store, 100)
        await work_off(store, batches=2)
        # A due time in the past means now, and now is not behind any claim.
        assert await store.reschedule(QUEUE, "moved", clock.now() - HOUR)
        await publish_backlog(store, 100)

        found = await work_off(store, batches=8)
        clock.advance(SECOND)
        found += await work_off(store, batches=1)

        assert b"moved" in bodies(found)

    async def test_every_queue_is_looked_at_from_where_it_stands(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish_batch([message(b"refund", queue="refunds") for _ in range(3)])
        clock.advance(MINUTE)
        await publish_backlog(store, 30)
        await work_off(store, batches=2)

        # Older than everything claimed from the other queue, and not hidden by it.
        assert await claim_bodies(store, "refunds") == [b"refund"] * 3

    # ----------------------------------------------------------------------------- a clock that steps

    async def test_after_the_clock_stepped_back_new_messages_are_found_at_once(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await publish_backlog(store, 25)
        await work_off(store, batches=1)

        clock.advance(-MINUTE)
        await store.publish(message(b"after the step"))

        assert await claim_bodies(store) == [b"after the step"]

    async def test_after_the_clock_stepped_back_nothing_is_early(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await publish_backlog(store, 25)
        await work_off(store, batches=1)

        clock.advance(-MINUTE)
        claimed = await store.claim([QUEUE], limit=100, lease=LEASE, token=fresh_token())

        assert list(claimed.deliveries) == []
        assert claimed.next_in == MINUTE
        clock.advance(MINUTE - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        assert len(await claim_all(store)) == 15

    @needs("transactions", "concurrent_writers")
    async def test_after_the_clock_stepped_back_what_commits_late_is_found_within_a_second_of_load(
        self, store: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        await publish_backlog(store, 25)
        await work_off(store, batches=1)
        clock.advance(-HOUR)
        async with harness.transaction() as transaction:
            await store.publish_batch([message(b"late") for _ in range(5)], transaction=transaction)
            clock.advance(SECOND)
            await publish_backlog(store, 100)
            await work_off(store, batches=4)

        clock.advance(SECOND)

        assert bodies(await work_off(store, batches=1)).count(b"late") == 5

    async def test_after_the_clock_jumped_ahead_and_back_nothing_is_lost(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        clock.advance(HOUR)
        await store.publish(message(b"published in the future"))
        await work_off(store, batches=1)
        clock.advance(-HOUR)
        await publish_backlog(store, 15)

        assert len(await work_off(store, batches=1)) == 10
        await store.publish(message(b"now"))
        assert sorted(bodies(await work_off(store, batches=1))) == [*[b"backlog"] * 5, b"now"]


async def publish_backlog(store: FullStore, count: int) -> None:
    """More than one claim can take, all due now."""
    await store.publish_batch([message(b"backlog") for _ in range(count)])


async def work_off(store: FullStore, *, batches: int) -> list[Delivery]:
    """Claim this many batches, finishing each before the next, as a busy worker does."""
    seen: list[Delivery] = []
    for _ in range(batches):
        batch = await claim_all(store, limit=BATCH)
        await store.settle([Settlement(delivery, Done()) for delivery in batch])
        seen += batch
    return seen
