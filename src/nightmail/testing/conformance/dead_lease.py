"""The lease on a dead letter: who may write, how it is extended, recalled and lost."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import Extend, FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    EVERYTHING,
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    QUEUE,
    REJECTED,
    SECOND,
    bury,
    claim_all,
    claim_letter,
    claim_letters,
    claim_one,
    extend_one,
    fresh_token,
    message,
    promptly,
    settle_one,
)
from nightmail.testing.conformance.build_letters import taken_over, three_letters
from nightmail.testing.conformance.lease import came

whatever_ends_a_lease = pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(Done(), id="done"),
        pytest.param(Retry(MINUTE), id="retry"),
        pytest.param(Postpone(MINUTE), id="postpone"),
        pytest.param(Dead("given up"), id="dead"),
        pytest.param(Release(), id="release"),
    ],
)


class DeadLeaseConformance:
    """Dead letters: leased, renewed, recalled."""

    async def test_a_held_letter_is_not_offered(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        await claim_letter(store, lease=LEASE)

        assert await claim_letters(store) == []
        assert await claim_letters(other) == []
        clock.advance(LEASE - MICROSECOND)
        assert await claim_letters(other) == []

    async def test_a_letter_comes_again_once_its_lease_has_expired_and_the_loss_is_counted(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        died_at = clock.now()
        await bury(store, message())

        counted = []
        for worker in (store, other, store):
            letter = await claim_letter(worker, lease=LEASE)
            counted.append((letter.deliveries, letter.attempts, letter.due_at))
            clock.advance(LEASE)

        assert counted == [(1, 0, died_at), (2, 0, died_at), (3, 0, died_at)]

    async def test_letters_that_a_lost_reply_took_are_handed_back_by_its_token(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        token = fresh_token()
        taken = await claim_letters(store, limit=2, token=token)
        await claim_letters(store)

        assert await other.recall_dead([QUEUE], token) == 2

        again = await claim_letters(store)
        assert [(each.id, each.due_at, each.deliveries) for each in again] == [
            (each.id, each.due_at, 1) for each in taken
        ]
        assert await settle_one(store, taken[0], Done()) is WriteResult.LOST

    async def test_recalling_letters_leaves_what_other_tokens_and_queues_have(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        token = fresh_token()
        await claim_letter(store, lease=LEASE, token=token)

        assert await store.recall_dead([QUEUE], fresh_token()) == 0
        assert await store.recall_dead(["refunds"], token) == 0

        assert await claim_letters(store) == []
        clock.advance(LEASE)
        assert (await claim_letter(store)).deliveries == 2

    async def test_thousands_of_letters_are_recalled_among_those_that_others_have(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        token = fresh_token()
        await store.publish_batch([message() for _ in range(2_400)])
        taken = await claim_all(store, limit=2_400)
        await store.settle([Settlement(each, REJECTED) for each in taken])
        others = await claim_letters(other, limit=1_200, lease=LEASE)
        clock.advance(SECOND)
        lost = await claim_letters(store, limit=1_200, lease=LEASE, token=token)

        assert await store.recall_dead([QUEUE], token) == 1_200

        again = await claim_letters(store, limit=2_400)
        assert [(each.id, each.deliveries) for each in again] == [(each.id, 1) for each in lost]
        assert set(await other.extend(others, LEASE)) == {WriteResult.WRITTEN}

    async def test_messages_and_letters_are_recalled_apart(self, store: FullStore) -> None:
        await bury(store, message(b"dead"))
        await store.publish(message(b"alive"))
        for_letters, for_messages = fresh_token(), fresh_token()
        await claim_letter(store, token=for_letters)
        await claim_one(store, token=for_messages)

        assert await store.recall([QUEUE], for_letters) == 0
        assert await store.recall_dead([QUEUE], for_messages) == 0
        assert await store.recall_dead([QUEUE], for_letters) == 1
        assert await store.recall([QUEUE], for_messages) == 1

    async def test_the_lease_on_a_letter_can_be_extended(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        letter = await claim_letter(store, lease=LEASE)
        clock.advance(SECOND)

        assert await extend_one(store, letter, LEASE) is WriteResult.WRITTEN

        clock.advance(LEASE - MICROSECOND)
        assert await claim_letters(other) == []
        clock.advance(MICROSECOND)
        assert len(await claim_letters(other)) == 1

    async def test_extending_never_shortens_the_lease_on_a_letter(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        letter = await claim_letter(store, lease=HOUR)

        assert await extend_one(store, letter, SECOND) is WriteResult.WRITTEN

        clock.advance(HOUR - MICROSECOND)
        assert await claim_letters(store) == []

    async def test_leases_on_letters_are_extended_together_and_answered_in_order(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        first, second, third = await claim_letters(store, lease=LEASE)
        await settle_one(store, second, Done())

        results = await store.extend([third, second, first], HOUR)

        assert list(results) == [WriteResult.WRITTEN, WriteResult.LOST, WriteResult.WRITTEN]
        clock.advance(LEASE)
        assert await claim_letters(store) == []

    async def test_work_beside_extends_the_lease_on_a_letter(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        letter = await claim_letter(store, lease=LEASE)
        results: list[WriteResult] = []
        extended = threading.Event()

        async def work(extend: Extend) -> None:
            results.extend(await extend([letter], HOUR))
            extended.set()

        async with promptly(), store.run_on_keeper_thread(work):
            await came(extended)

        assert results == [WriteResult.WRITTEN]
        clock.advance(LEASE)
        assert await claim_letters(other) == []

    async def test_work_beside_is_told_that_the_lease_on_a_letter_is_lost(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        late, _ = await taken_over(store, other, clock)
        results: list[WriteResult] = []
        extended = threading.Event()

        async def work(extend: Extend) -> None:
            results.extend(await extend([late], HOUR))
            extended.set()

        async with promptly(), store.run_on_keeper_thread(work):
            await came(extended)

        assert results == [WriteResult.LOST]

    @whatever_ends_a_lease
    async def test_who_lost_a_letter_cannot_settle_it(
        self, store: FullStore, other: FullStore, clock: ManualClock, outcome: Outcome
    ) -> None:
        late, successor = await taken_over(store, other, clock)
        before = await store.dead(EVERYTHING)

        assert await settle_one(store, late, outcome) is WriteResult.LOST

        assert await store.dead(EVERYTHING) == before
        assert await claim_letters(store) == []
        assert await extend_one(store, late, HOUR) is WriteResult.LOST
        assert await settle_one(other, successor, Release()) is WriteResult.WRITTEN
        assert (await claim_letter(store)).deliveries == 2

    @whatever_ends_a_lease
    async def test_an_expired_lease_on_a_letter_that_was_not_taken_over_still_settles(
        self, store: FullStore, clock: ManualClock, outcome: Outcome
    ) -> None:
        await bury(store, message())
        letter = await claim_letter(store, lease=LEASE)
        clock.advance(LEASE + HOUR)

        assert await settle_one(store, letter, outcome) is WriteResult.WRITTEN
        assert await settle_one(store, letter, outcome) is WriteResult.LOST

    async def test_the_lease_on_a_letter_is_its_id_and_its_token_together(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message(b"a"))
        clock.advance(SECOND)
        await bury(store, message(b"b"))
        (a,) = await claim_letters(store, limit=1)
        (b,) = await claim_letters(store, limit=1)

        crossed = replace(a, token=b.token)

        assert await settle_one(store, crossed, Done()) is WriteResult.LOST
        assert await extend_one(store, crossed) is WriteResult.LOST
        assert await settle_one(store, a, Done()) is WriteResult.WRITTEN
        assert await settle_one(store, b, Done()) is WriteResult.WRITTEN
