"""Dead letters are not messages: what is asked of messages neither shows nor changes them."""

from __future__ import annotations

from nightmail.outcome import Dead, Done, WriteResult
from nightmail.records import DeadFilter, QueueStats
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    DAY,
    EVERYTHING,
    HOUR,
    QUEUE,
    bury,
    claim_all,
    claim_letter,
    claim_letters,
    extend_one,
    message,
    settle_one,
    timer,
)
from nightmail.testing.conformance.build_letters import three_letters


class DeadNotMessagesConformance:
    """Dead letters: never mistaken for messages."""

    async def test_no_claim_of_messages_and_no_look_at_them_shows_a_letter(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, timer("reminder"))
        clock.advance(DAY)

        assert await claim_all(store) == []
        assert await store.peek() == []
        assert await store.peek(QUEUE, timer_id="reminder") == []

    async def test_cancelling_and_moving_leave_letters_alone(self, store: FullStore) -> None:
        await bury(store, timer("reminder"))

        assert await store.cancel(QUEUE, "reminder") is False
        assert await store.reschedule(QUEUE, "reminder", HOUR) is False
        assert await store.cancel_all(QUEUE) == 0

        assert (await claim_letter(store)).timer_id == "reminder"

    async def test_letters_count_as_dead_whether_they_are_held_or_given_up_or_not(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        held, given_up = await claim_letters(store, limit=2)
        await settle_one(store, given_up, Dead("given up"))

        assert await store.stats() == {QUEUE: QueueStats(dead=3)}
        assert len(await store.dead(EVERYTHING)) == 3
        assert await extend_one(store, held) is WriteResult.WRITTEN

    async def test_looking_at_letters_takes_nothing_from_its_holder(self, store: FullStore) -> None:
        await bury(store, message())
        letter = await claim_letter(store)

        (listed,) = await store.dead(DeadFilter(ids=(letter.id,)))

        assert (listed.attempts, listed.deliveries) == (1, 1)
        assert await settle_one(store, letter, Done()) is WriteResult.WRITTEN
