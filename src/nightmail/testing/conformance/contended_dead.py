"""Dead letters that several processes take, redrive and sweep at the same time: each goes to one of them."""

from __future__ import annotations

import asyncio

from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    AT_ONCE,
    EVERYTHING,
    SECOND,
    bodies,
    bury,
    claim_all,
    claim_letters,
    message,
    timer,
)


class ContendedDeadConformance:
    """`claim_dead`, `redrive`, `purge` and `sweep`, by more than one at once."""

    async def test_claims_at_the_same_time_never_give_a_letter_twice(
        self, store: FullStore, other: FullStore
    ) -> None:
        for number in range(30):
            await bury(store, message(b"%d" % number))

        async def take_all(who: FullStore) -> list[int]:
            ids: list[int] = []
            while taken := await claim_letters(who, limit=3):
                ids += [letter.id for letter in taken]
            return ids

        ours, theirs = await asyncio.gather(take_all(store), take_all(other))

        assert len(ours + theirs) == len({*ours, *theirs}) == 30

    async def test_a_letter_redriven_into_several_queues_at_once_goes_to_one_of_them(
        self, store: FullStore, other: FullStore
    ) -> None:
        letter = await bury(store, message())

        moved = await asyncio.gather(
            *(each.redrive([letter], to=to) for each in (store, other) for to in (None, "x", "y", None))
        )

        assert sum(map(len, moved)) == 1
        assert len(await store.peek()) == 1
        assert await store.dead(EVERYTHING) == []

    async def test_two_redrives_that_want_each_others_timer_ids_both_end(
        self, store: FullStore, other: FullStore
    ) -> None:
        timer_ids = [f"timer {number}" for number in range(20)]
        first = [await bury(store, timer(timer_id, b"first")) for timer_id in timer_ids]
        second = [await bury(store, timer(timer_id, b"second")) for timer_id in timer_ids]

        moved = await asyncio.gather(store.redrive(first), other.redrive(second[::-1]))

        assert sum(map(len, moved)) == 20
        assert sorted(str(found.timer_id) for found in await store.peek()) == sorted(timer_ids)
        assert len(await store.dead(EVERYTHING)) == 20

    async def test_timer_ids_that_are_published_and_redriven_at_the_same_time_have_one_owner_each(
        self, store: FullStore, other: FullStore
    ) -> None:
        timer_ids = [f"timer {number}" for number in range(20)]
        letters = [await bury(store, timer(timer_id, b"dead")) for timer_id in timer_ids]

        async def publish() -> int:
            stored = [await other.publish(timer(timer_id, b"newer")) for timer_id in timer_ids[::-1]]
            return sum(id_ is not None for id_ in stored)

        moved, published = await asyncio.gather(store.redrive(letters), publish())

        assert len(moved) + published == 20
        assert len(await store.dead(EVERYTHING)) == 20 - len(moved)
        assert len(await claim_all(store)) == 20

    async def test_sweeps_at_the_same_time_count_each_letter_once(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        for number in range(30):
            await bury(store, message(b"%d" % number))
        clock.advance(SECOND)

        swept = await asyncio.gather(
            *(each.sweep(older_than=AT_ONCE, limit=20) for each in (store, other, store, other))
        )

        assert sum(each.dead for each in swept) == 30
        assert await store.dead(EVERYTHING) == []

    async def test_letters_of_several_queues_are_purged_in_one_order(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await _bury_in_turn(store, clock)

        assert await store.purge(EVERYTHING, limit=1) == 1
        assert bodies(await store.dead(EVERYTHING)) == [b"4", b"3", b"2"]

    async def test_letters_of_several_queues_are_taken_in_one_order(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await _bury_in_turn(store, clock)

        assert bodies(await claim_letters(store, "b", "a", "b", limit=2)) == [b"1", b"2"]


async def _bury_in_turn(store: FullStore, clock: ManualClock) -> None:
    for body, queue in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", "b")):
        await bury(store, message(body, queue=queue))
        clock.advance(SECOND)
