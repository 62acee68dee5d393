"""What each outcome does to a dead letter, alone and in a mixed batch."""

from __future__ import annotations

from collections.abc import Sequence

from nightmail.message import DeadDelivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    DAY,
    EVERYTHING,
    LEASE,
    MICROSECOND,
    MINUTE,
    SECOND,
    bodies,
    bury,
    claim_all,
    claim_letter,
    claim_letters,
    claim_one,
    extend_one,
    message,
    settle_one,
    timer,
)
from nightmail.testing.conformance.build_letters import look, three_letters, whatever_brings_back


class DeadSettleConformance:
    """Dead letters: done, tried again, handed back, or given up."""

    async def test_a_letter_that_is_done_is_gone(self, store: FullStore, clock: ManualClock) -> None:
        await bury(store, message())

        assert await settle_one(store, await claim_letter(store), Done()) is WriteResult.WRITTEN

        assert await store.dead(EVERYTHING) == []
        assert await store.stats() == {}
        clock.advance(DAY)
        assert await claim_letters(store) == []

    async def test_done_removes_one_letter_and_no_other(self, store: FullStore, clock: ManualClock) -> None:
        await three_letters(store, clock)
        _, second, _ = await claim_letters(store)

        await settle_one(store, second, Done())

        assert bodies(await store.dead(EVERYTHING)) == [b"third", b"first"]

    async def test_a_retried_letter_may_be_taken_again_after_its_delay_and_not_before(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        letter = await claim_letter(store)
        clock.advance(SECOND * 3)

        assert await settle_one(store, letter, Retry(SECOND * 10)) is WriteResult.WRITTEN

        due_at = clock.now() + SECOND * 10
        clock.advance(SECOND * 10 - MICROSECOND)
        assert await claim_letters(store) == []
        clock.advance(MICROSECOND)
        assert (await claim_letter(store)).due_at == due_at

    async def test_every_retry_of_a_letter_counts_one_attempt(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        await claim_letter(store, lease=LEASE)
        clock.advance(LEASE)

        counted = []
        for _ in range(3):
            letter = await claim_letter(store)
            counted.append((letter.attempts, letter.attempt, letter.deliveries))
            await settle_one(store, letter, Retry())

        assert counted == [(0, 1, 2), (1, 2, 1), (2, 3, 1)]

    async def test_a_postponed_letter_may_be_taken_again_after_its_delay_with_both_counters_afresh(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        await settle_one(store, await claim_letter(store), Retry())
        letter = await claim_letter(store)

        assert await settle_one(store, letter, Postpone(MINUTE)) is WriteResult.WRITTEN

        clock.advance(MINUTE - MICROSECOND)
        assert await claim_letters(store) == []
        clock.advance(MICROSECOND)
        again = await claim_letter(store)
        assert (again.attempts, again.deliveries, again.due_at) == (0, 1, clock.now())

    async def test_a_released_letter_may_be_taken_at_once_and_its_claim_is_not_counted(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        await settle_one(store, await claim_letter(store), Retry())
        await claim_letter(store, lease=LEASE)
        clock.advance(LEASE)
        letter = await claim_letter(store)
        clock.advance(SECOND)

        assert await settle_one(store, letter, Release()) is WriteResult.WRITTEN

        again = await claim_letter(store)
        assert (again.attempts, again.deliveries, again.due_at) == (1, 2, letter.due_at)

    @whatever_brings_back
    async def test_what_is_known_of_the_message_stays_when_its_letter_is_brought_back(
        self, store: FullStore, clock: ManualClock, outcome: Outcome
    ) -> None:
        before = await bury(store, timer("reminder", headers={"trace": "abc"}, ordering_key="k", priority=4))
        clock.advance(SECOND)
        first = await claim_letter(store)
        clock.advance(SECOND)
        await settle_one(store, first, outcome)
        clock.advance(MINUTE)

        again = await claim_letter(store)

        assert told(again) == told(first)
        assert await store.dead(EVERYTHING) == [before]

    async def test_a_letter_that_is_given_up_stays_as_it_was(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        before = await bury(store, timer("reminder"), Dead("rejected", "ValueError: no"))
        clock.advance(SECOND)
        letter = await claim_letter(store)
        clock.advance(SECOND)

        assert await settle_one(store, letter, Dead("unknown", "KeyError: why")) is WriteResult.WRITTEN

        assert await store.dead(EVERYTHING) == [before]
        assert (before.reason, before.error) == ("rejected", "ValueError: no")

    async def test_a_letter_that_is_given_up_is_offered_no_more(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        letter = await claim_letter(store)
        await settle_one(store, letter, Dead("given up"))

        assert await claim_letters(other) == []
        clock.advance(DAY * 400)
        assert await claim_letters(other) == []
        assert (await look(other)).next_in is None
        assert await extend_one(store, letter) is WriteResult.LOST

    async def test_a_letter_that_is_given_up_can_be_redriven(self, store: FullStore) -> None:
        await bury(store, message(b"after all"))
        await settle_one(store, await claim_letter(store), Dead("given up"))

        assert len(await store.redrive(await store.dead(EVERYTHING))) == 1

        assert (await claim_one(store)).body == b"after all"

    async def test_a_mixed_batch_of_letters_is_written_at_once_and_answered_in_order(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for body in (b"done", b"retried", b"postponed", b"released", b"given up", b"gone"):
            await bury(store, message(body))
            clock.advance(SECOND)
        done, retried, postponed, released, given_up, gone = await claim_letters(store)
        await settle_one(store, gone, Done())

        results = await store.settle(
            [
                Settlement(done, Done()),
                Settlement(retried, Retry(SECOND * 2)),
                Settlement(postponed, Postpone(SECOND)),
                Settlement(gone, Done()),
                Settlement(gone, Done(), repeated=True),
                Settlement(released, Release()),
                Settlement(given_up, Dead("given up")),
            ]
        )

        held, lost, unknown = WriteResult.WRITTEN, WriteResult.LOST, WriteResult.UNKNOWN
        assert list(results) == [held, held, held, lost, unknown, held, held]
        assert bodies(await store.dead(EVERYTHING)) == [b"given up", b"released", b"postponed", b"retried"]
        clock.advance(SECOND * 2)
        assert bodies(await claim_letters(store)) == [b"released", b"postponed", b"retried"]

    async def test_letters_of_several_queues_settle_in_one_batch(self, store: FullStore) -> None:
        for queue in ("orders", "refunds", "mail"):
            await bury(store, message(queue=queue))
        letters = await claim_letters(store, "orders", "refunds", "mail")

        results = await store.settle([Settlement(letter, Done()) for letter in letters])

        assert list(results) == [WriteResult.WRITTEN] * 3
        assert await store.stats() == {}

    async def test_a_letter_and_a_message_that_have_the_same_id_are_told_apart(
        self, store: FullStore
    ) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(5)])
        *alive, dying = await claim_all(store)
        await settle_one(store, dying, Dead("rejected"))
        letter = await claim_letter(store)

        assert await settle_one(store, letter, Done()) is WriteResult.WRITTEN

        assert list(await store.extend(alive, LEASE)) == [WriteResult.WRITTEN] * 4


def told(letter: DeadDelivery) -> Sequence[object]:
    """Everything a dead letter says about its message and why it died."""
    return (
        letter.id,
        letter.message_id,
        letter.queue,
        letter.body,
        letter.encoded_headers,
        letter.timer_id,
        letter.ordering_key,
        letter.priority,
        letter.published_at,
        letter.first_attempt_at,
        letter.last_attempt_at,
        letter.reason,
        letter.error,
        letter.died_at,
    )
