"""Higher priority first, and nothing starves."""

from __future__ import annotations

import pytest

from nightmail.outcome import Retry
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    MINUTE,
    QUEUE,
    SECOND,
    claim_all,
    claim_bodies,
    message,
    settle_one,
)


class PriorityConformance:
    """Priorities 0 to 9, and the one in eight that goes to the oldest."""

    # ---------------------------------------------------------------------------------------- levels

    async def test_every_level_from_nine_to_nothing_goes_before_the_one_below(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        # The oldest also has the highest priority, so the share of the oldest changes nothing here.
        for priority in (9, 3, 6, 1, 8, 0, 5, 2, 7, 4):
            await store.publish(message(b"%d" % priority, priority=priority))
            clock.advance(SECOND)

        assert await claim_bodies(store, limit=10) == [
            b"9", b"8", b"7", b"6", b"5", b"4", b"3", b"2", b"1", b"0",
        ]  # fmt: skip

    async def test_levels_hold_when_messages_are_claimed_one_at_a_time(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for priority in (3, 6, 1, 9, 0, 5, 4):
            await store.publish(message(b"%d" % priority, priority=priority))
            clock.advance(SECOND)

        seen = [await claim_bodies(store, limit=1) for _ in range(7)]

        assert seen == [[b"9"], [b"6"], [b"5"], [b"4"], [b"3"], [b"1"], [b"0"]]

    async def test_within_a_level_messages_go_by_due_time_and_then_by_id(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"late", due=SECOND * 3, priority=7))
        await store.publish(message(b"early", due=SECOND, priority=7))
        await store.publish(message(b"middle", due=SECOND * 2, priority=7))
        await store.publish(message(b"middle, next id", due=SECOND * 2, priority=7))
        clock.advance(MINUTE)

        assert await claim_bodies(store, limit=4) == [b"early", b"middle", b"middle, next id", b"late"]

    async def test_a_high_priority_does_not_make_a_message_due(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"urgent, tomorrow", due=MINUTE, priority=9))
        await store.publish(message(b"whenever, now", priority=0))

        assert await claim_bodies(store) == [b"whenever, now"]
        clock.advance(MINUTE - SECOND)
        assert b"urgent, tomorrow" not in await claim_bodies(store)

    async def test_a_retried_message_keeps_its_priority(self, store: FullStore) -> None:
        await store.publish(message(b"urgent", priority=9))
        (urgent,) = await claim_all(store, limit=1)
        await store.publish_batch([message(b"a"), message(b"b")])

        await settle_one(store, urgent, Retry())

        assert await claim_bodies(store, limit=3) == [b"urgent", b"a", b"b"]

    async def test_a_message_replaced_takes_the_new_priority(self, store: FullStore) -> None:
        await store.publish_batch([message(b"a", priority=5), message(b"b", priority=5)])
        await store.publish(message(b"unimportant", timer_id="news", priority=1))

        await store.publish(message(b"important", timer_id="news", priority=9, on_conflict="replace"))

        assert await claim_bodies(store, limit=3) == [b"important", b"a", b"b"]

    # --------------------------------------------------------------------------- the share of the oldest

    async def test_of_every_eight_messages_claimed_one_at_a_time_one_is_the_oldest(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await publish_low_before_high(store, clock, low=5, high=50)

        seen = [(await claim_bodies(store, limit=1))[0] for _ in range(40)]

        for start in range(0, 40, 8):
            low = [body for body in seen[start : start + 8] if body.startswith(b"low")]
            assert low == [b"low %d" % (start // 8)]

    async def test_of_every_eight_messages_claimed_in_batches_of_ten_one_is_the_oldest(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await publish_low_before_high(store, clock, low=12, high=100)

        batches = [await claim_bodies(store, limit=10) for _ in range(8)]

        low = [[body for body in batch if body.startswith(b"low")] for batch in batches]
        # One in eight of eighty messages is ten; every batch of ten has its share, and the share comes first.
        assert [body for part in low for body in part] == [b"low %d" % number for number in range(10)]
        assert all(part for part in low)
        assert [batch[: len(part)] for batch, part in zip(batches, low, strict=True)] == low

    @pytest.mark.parametrize("limit", [2, 3, 8, 16])
    async def test_the_share_of_the_oldest_is_the_same_in_batches_of_any_size(
        self, store: FullStore, clock: ManualClock, limit: int
    ) -> None:
        await publish_low_before_high(store, clock, low=8, high=60)

        seen: list[bytes] = []
        while len(seen) < 48:
            seen += await claim_bodies(store, limit=limit)

        assert sum(body.startswith(b"low") for body in seen[:48]) == 6

    async def test_the_rest_of_a_batch_goes_by_priority(self, store: FullStore, clock: ManualClock) -> None:
        for priority in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9):
            await store.publish(message(b"%d" % priority, priority=priority))
            clock.advance(SECOND)

        assert await claim_bodies(store, limit=8) == [b"0", b"9", b"8", b"7", b"6", b"5", b"4", b"3"]

    async def test_the_share_is_one_in_eight_of_what_was_claimed_and_not_of_the_limit(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for priority in (0, 1, 2, 3, 4, 9):
            await store.publish(message(b"%d" % priority, priority=priority))
            clock.advance(SECOND)

        # Only six, with room for a hundred: none of them is an eighth.
        assert await claim_bodies(store, limit=100) == [b"9", b"4", b"3", b"2", b"1", b"0"]

    async def test_the_oldest_is_the_oldest_due_and_not_the_first_published(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"published first", due=SECOND * 2, priority=1))
        await store.publish(message(b"due first", due=SECOND, priority=0))
        clock.advance(SECOND * 3)
        await store.publish_batch([message(b"high", priority=9) for _ in range(10)])

        assert (await claim_bodies(store, limit=8))[0] == b"due first"

    async def test_a_message_of_high_priority_may_be_the_oldest(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"oldest", priority=9))
        clock.advance(SECOND)
        await store.publish_batch([message(b"low", priority=0) for _ in range(3)])
        await store.publish_batch([message(b"high", priority=9) for _ in range(9)])

        assert await claim_bodies(store, limit=8) == [b"oldest", *[b"high"] * 7]

    async def test_every_queue_counts_its_own_eight(self, store: FullStore, clock: ManualClock) -> None:
        for queue in ("orders", "refunds"):
            await store.publish(message(b"low", queue=queue, priority=0))
        clock.advance(SECOND)
        for queue in ("orders", "refunds"):
            await store.publish_batch([message(b"high", queue=queue, priority=9) for _ in range(10)])

        seen: dict[str, list[bytes]] = {"orders": [], "refunds": []}
        for queue, times in (("orders", 7), ("refunds", 7), ("orders", 1), ("refunds", 1)):
            for _ in range(times):
                seen[queue] += await claim_bodies(store, queue, limit=1)

        assert sorted(seen["orders"]) == [*[b"high"] * 7, b"low"]
        assert sorted(seen["refunds"]) == [*[b"high"] * 7, b"low"]

    # ---------------------------------------------------------------------------------- no starvation

    async def test_a_low_message_is_claimed_within_eight_under_an_endless_flood_of_high_ones(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"low", priority=0))

        seen: list[bytes] = []
        while b"low" not in seen:
            clock.advance(SECOND)
            await store.publish_batch([message(b"high", priority=9), message(b"high", priority=9)])
            seen += await claim_bodies(store, limit=1)
            assert len(seen) <= 8, "starved"

    async def test_a_message_waits_for_at_most_eight_times_as_many_as_were_due_before_it(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for number in range(3):
            await store.publish(message(b"older %d" % number, priority=number))
            clock.advance(SECOND)
        await store.publish(message(b"low", priority=0))

        seen: list[bytes] = []
        while b"low" not in seen:
            clock.advance(SECOND)
            await store.publish_batch([message(b"high", priority=9) for _ in range(4)])
            seen += await claim_bodies(store, limit=3)
            assert len(seen) <= 8 * 4 + 2, "starved"

        # It was the fourth oldest, so it gets the fourth share at the latest.
        assert seen.index(b"low") < 8 * 4


async def publish_low_before_high(store: FullStore, clock: ManualClock, *, low: int, high: int) -> None:
    """Messages of the lowest priority, and later many of the highest: without a share the first would starve."""
    for number in range(low):
        await store.publish(message(b"low %d" % number, queue=QUEUE, priority=0))
        clock.advance(SECOND)
    await store.publish_batch([message(b"high %d" % number, priority=9) for number in range(high)])
