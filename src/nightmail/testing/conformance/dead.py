"""Dead letters and their handlers: claimed, renewed, settled, given up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from nightmail.errors import LeaseLost
from nightmail.message import DeadDelivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.records import DeadFilter, DeadLetter, QueueStats
from nightmail.store import Claimed, Extend, FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    QUEUE,
    SECOND,
    bodies,
    bury,
    claim_all,
    claim_letter,
    claim_letters,
    claim_one,
    extend_one,
    fresh_token,
    message,
    needs,
    promptly,
    settle_one,
    stored,
    timer,
)
from nightmail.testing.conformance.harness import Harness, RolledBack
from nightmail.testing.conformance.lease import came
from nightmail.testing.conformance.wakeup import listening

EVERYTHING = DeadFilter()
DAY = HOUR * 24

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
whatever_brings_back = pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(Retry(), id="retry now"),
        pytest.param(Retry(SECOND * 10), id="retry soon"),
        pytest.param(Postpone(SECOND * 10), id="postpone"),
        pytest.param(Release(), id="release"),
    ],
)


class DeadConformance:
    """Dead letters: claimed one at a time, leased, settled, and never mistaken for messages."""

    # ----------------------------------------------------------------------------------- what is taken

    async def test_a_letter_can_be_taken_at_once_whatever_delay_its_message_had(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"delayed", due=DAY))
        clock.advance(DAY)
        await settle_one(store, await claim_one(store), Retry(HOUR))
        clock.advance(HOUR)

        await settle_one(store, await claim_one(store), Dead("rejected"))

        assert bodies(await claim_letters(other)) == [b"delayed"]

    async def test_a_letter_tells_everything_about_its_message_and_its_death(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        start = clock.now()
        id_ = await stored(
            store,
            timer(
                "reminder",
                b"\x00hello",
                headers={"trace": "żółć"},
                ordering_key="customer-7",
                priority=4,
                expires_in=HOUR,
            ),
        )
        clock.advance(SECOND)
        await settle_one(store, await claim_one(store), Retry())
        clock.advance(SECOND)
        given_up = await claim_one(store)
        clock.advance(SECOND)
        await settle_one(store, given_up, Dead("rejected", "ValueError: żółć"))
        (listed,) = await store.dead(EVERYTHING)
        clock.advance(MINUTE)

        token = fresh_token()
        letter = await claim_letter(store, token=token)

        assert (letter.id, letter.message_id, letter.token) == (listed.id, id_, token)
        assert (letter.queue, letter.timer_id) == (QUEUE, "reminder")
        assert (letter.body, letter.headers) == (b"\x00hello", {"trace": "żółć"})
        assert (letter.ordering_key, letter.priority) == ("customer-7", 4)
        assert (letter.reason, letter.error) == ("rejected", "ValueError: żółć")
        assert (letter.attempts, letter.deliveries) == (0, 1)
        assert (letter.published_at, letter.died_at) == (start, start + SECOND * 3)
        assert (letter.due_at, letter.claimed_at) == (start + SECOND * 3, start + SECOND * 3 + MINUTE)
        assert (letter.first_attempt_at, letter.last_attempt_at) == (start + SECOND, start + SECOND * 2)
        assert (letter.expires_at, letter.superseded) == (None, False)

    async def test_a_letter_shows_what_its_message_did_not_have_as_absent(self, store: FullStore) -> None:
        await bury(store, message(), Dead("expired", ran=False))

        letter = await claim_letter(store)

        assert (letter.error, letter.timer_id, letter.ordering_key) == (None, None, None)
        assert (letter.first_attempt_at, letter.last_attempt_at) == (None, None)
        assert (letter.headers, letter.priority, letter.reason) == ({}, 0, "expired")

    async def test_a_letter_of_a_superseded_message_is_a_letter_like_any_other(
        self, store: FullStore
    ) -> None:
        await store.publish(timer("reminder", b"old"))
        old = await claim_one(store)
        await store.publish(timer("reminder", b"new", on_conflict="replace"))

        await settle_one(store, old, Dead("rejected"))

        letter = await claim_letter(store)
        assert (letter.body, letter.timer_id, letter.superseded) == (b"old", "reminder", False)

    async def test_where_nothing_died_there_is_nothing_to_take(self, store: FullStore) -> None:
        await store.publish(message())

        assert await claim_letters(store) == []

    # ------------------------------------------------------------------------- order, limit and queues

    async def test_the_letter_longest_due_comes_first_whatever_its_priority(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)

        assert bodies(await claim_letters(store)) == [b"first", b"second", b"third"]

    async def test_a_letter_brought_back_goes_by_its_new_due_time(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        (first,) = await claim_letters(store, limit=1)
        await settle_one(store, first, Retry(HOUR))
        clock.advance(HOUR)

        assert bodies(await claim_letters(store)) == [b"second", b"third", b"first"]

    async def test_no_more_letters_are_taken_than_asked_for(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)

        assert bodies(await claim_letters(store, limit=2)) == [b"first", b"second"]
        assert bodies(await claim_letters(store, limit=2)) == [b"third"]
        assert await claim_letters(store, limit=2) == []

    async def test_a_limit_of_nothing_takes_no_letter(self, store: FullStore) -> None:
        await bury(store, message())

        assert await claim_letters(store, limit=0) == []

        assert (await claim_letter(store)).deliveries == 1

    async def test_letters_come_from_the_queues_that_are_named_and_from_no_other(
        self, store: FullStore
    ) -> None:
        for queue in ("orders", "refunds", "mail"):
            await bury(store, message(queue.encode(), queue=queue))

        assert sorted(bodies(await claim_letters(store, "orders", "mail"))) == [b"mail", b"orders"]
        assert bodies(await claim_letters(store, "refunds", "refunds")) == [b"refunds"]

    async def test_letters_of_no_queue_are_none(self, store: FullStore) -> None:
        await bury(store, message())

        claimed = await store.claim_dead([], limit=10, lease=LEASE, token=fresh_token())

        assert (list(claimed.deliveries), claimed.next_in) == ([], None)

    async def test_letters_of_one_ordering_key_may_be_held_together(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message(b"a", ordering_key="k"))
        clock.advance(SECOND)
        await bury(store, message(b"b", ordering_key="k"))

        assert bodies(await claim_letters(store)) == [b"a", b"b"]

    async def test_a_letter_does_not_keep_the_next_message_of_its_key_from_being_delivered(
        self, store: FullStore
    ) -> None:
        await bury(store, message(b"dead", ordering_key="k"))
        await claim_letter(store)

        await store.publish(message(b"next", ordering_key="k"))

        assert (await claim_one(store)).body == b"next"

    async def test_a_timer_that_dies_again_and_again_gives_a_letter_each_time(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for body in (b"first", b"second", b"third"):
            await bury(store, timer("reminder", body))
            clock.advance(SECOND)

        letters = await claim_letters(store)

        assert bodies(letters) == [b"first", b"second", b"third"]
        assert [letter.timer_id for letter in letters] == ["reminder"] * 3
        assert len({letter.id for letter in letters}) == 3
        assert (
            await store.settle([Settlement(letter, Done()) for letter in letters])
            == [WriteResult.WRITTEN] * 3
        )
        assert await store.dead(EVERYTHING) == []

    async def test_large_letters_are_taken_whole(self, store: FullStore) -> None:
        for body in (b"x" * 4_000_000, b"", b"y" * 900_000):
            await bury(store, message(body))

        assert [len(letter.body) for letter in await claim_letters(store)] == [4_000_000, 0, 900_000]

    async def test_a_large_backlog_of_letters_is_taken_at_once(self, store: FullStore) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(300)])
        deliveries = await claim_all(store, limit=300)
        await store.settle([Settlement(delivery, Dead("rejected")) for delivery in deliveries])

        letters = await claim_letters(store, limit=500)

        assert sorted(letter.message_id for letter in letters) == sorted(each.id for each in deliveries)

    # ------------------------------------------------------------------------------------------ leases

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

    # ---------------------------------------------------------------------------------------- outcomes

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

        assert await settle_one(store, letter, Dead("nobody knows", "KeyError: why")) is WriteResult.WRITTEN

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

    # ----------------------------------------------------------------------------------------- next_in

    async def test_where_there_are_no_letters_none_are_expected(self, store: FullStore) -> None:
        await store.publish(message(due=MINUTE))

        assert (await look(store)).next_in is None

    async def test_the_next_look_for_letters_is_worth_it_when_one_is_due(self, store: FullStore) -> None:
        await bury(store, message())
        await settle_one(store, await claim_letter(store), Retry(SECOND * 7))

        assert (await look(store)).next_in == SECOND * 7

    async def test_the_next_look_for_letters_is_worth_it_when_a_lease_expires(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        await claim_letter(store, lease=SECOND * 20)
        clock.advance(SECOND * 5)

        assert (await look(other)).next_in == SECOND * 15

    async def test_the_leases_on_letters_that_a_claim_took_are_among_what_comes_next(
        self, store: FullStore
    ) -> None:
        await bury(store, message())

        claimed = await look(store, limit=10, lease_seconds=20)

        assert len(claimed.deliveries) == 1
        assert claimed.next_in == SECOND * 20

    async def test_a_full_claim_of_letters_says_look_again_at_once(self, store: FullStore) -> None:
        await bury(store, message(b"a"))
        await bury(store, message(b"b"))

        assert (await look(store, limit=1)).next_in is None

    async def test_letters_of_another_queue_are_not_waited_for(self, store: FullStore) -> None:
        await bury(store, message(queue="refunds"))
        await claim_letter(store, "refunds")

        assert (await look(store)).next_in is None

    async def test_a_claim_of_messages_does_not_wait_for_letters(self, store: FullStore) -> None:
        await bury(store, message())
        await claim_letter(store)

        claimed = await store.claim([QUEUE], limit=10, lease=LEASE, token=fresh_token())

        assert claimed.next_in is None

    # --------------------------------------------------------------------------------------- wake-ups

    async def test_a_death_rings_the_bell_of_its_queue(self, store: FullStore, sender: FullStore) -> None:
        await sender.publish(message())
        delivery = await claim_one(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, delivery, Dead("rejected"))

            assert await ear.rang()
            assert len(await claim_letters(store)) == 1

    @whatever_brings_back
    async def test_a_letter_that_may_soon_be_taken_again_rings(
        self, store: FullStore, sender: FullStore, outcome: Outcome
    ) -> None:
        await bury(sender, message())
        letter = await claim_letter(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, letter, outcome)

            assert await ear.rang()

    @pytest.mark.parametrize(
        "outcome",
        [
            pytest.param(Done(), id="done"),
            pytest.param(Dead("given up"), id="given up"),
            pytest.param(Retry(HOUR), id="retried much later"),
        ],
    )
    async def test_a_letter_that_cannot_be_taken_soon_does_not_ring(
        self, store: FullStore, sender: FullStore, outcome: Outcome
    ) -> None:
        await bury(sender, message())
        letter = await claim_letter(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, letter, outcome)

            assert await ear.stayed_silent()

    # ----------------------------------------------------------------------- in a caller's transaction

    @needs("transactions")
    async def test_a_letter_acked_in_a_transaction_is_gone_when_that_commits(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        first, second = await claim_letters(store, limit=2)

        async with harness.transaction() as transaction:
            await store.hold([first, second], transaction=transaction)
            await harness.write(transaction, "effect")
            await store.ack([first, second], transaction=transaction)

        assert await harness.written() == ["effect"]
        assert bodies(await store.dead(EVERYTHING)) == [b"third"]
        assert await settle_one(store, first, Retry()) is WriteResult.LOST

    @needs("transactions")
    async def test_after_a_rollback_the_letter_is_as_before(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        before = await bury(store, message())
        letter = await claim_letter(store)

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await harness.write(transaction, "effect")
                await store.ack([letter], transaction=transaction)
                raise RolledBack

        assert await harness.written() == []
        assert await store.dead(EVERYTHING) == [before]
        assert await claim_letters(store) == []
        assert await extend_one(store, letter) is WriteResult.WRITTEN
        clock.advance(LEASE)
        assert (await claim_letter(store)).deliveries == 2

    @needs("transactions")
    async def test_who_lost_a_letter_cannot_ack_it_and_their_writes_roll_back(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        late, successor = await taken_over(store, other, clock)

        with pytest.raises(LeaseLost) as raised:
            async with harness.transaction() as transaction:
                await harness.write(transaction, "by the late one")
                await store.ack([late], transaction=transaction)

        assert raised.value.ids == (late.id,)
        assert await harness.written() == []
        assert await settle_one(other, successor, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    async def test_who_lost_a_letter_learns_it_when_holding(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        late, successor = await taken_over(store, other, clock)

        with pytest.raises(LeaseLost) as raised:
            async with harness.transaction() as transaction:
                await store.hold([late], transaction=transaction)

        assert raised.value.ids == (late.id,)
        assert await settle_one(other, successor, Done()) is WriteResult.WRITTEN

    @needs("transactions")
    async def test_an_ack_of_letters_is_all_or_nothing_and_names_the_lost_ones(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        first, second, third = await claim_letters(store)
        await settle_one(store, second, Done())

        # The caller goes on and commits: even then no part of the ack may be written.
        async with harness.transaction() as transaction:
            with pytest.raises(LeaseLost) as raised:
                await store.ack([first, second, third], transaction=transaction)

        assert raised.value.ids == (second.id,)
        assert bodies(await store.dead(EVERYTHING)) == [b"third", b"first"]

    @needs("transactions")
    async def test_holding_a_letter_changes_nothing_by_itself(
        self, store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        before = await bury(store, message())
        letter = await claim_letter(store)

        async with harness.transaction() as transaction:
            await store.hold([letter], transaction=transaction)

        assert await store.dead(EVERYTHING) == [before]
        assert await extend_one(store, letter) is WriteResult.WRITTEN
        clock.advance(LEASE)
        assert (await claim_letter(store)).deliveries == 2

    @needs("transactions", "concurrent_writers")
    async def test_a_letter_that_an_open_transaction_has_locked_is_busy_and_holds_up_no_other(
        self, store: FullStore, other: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await three_letters(store, clock)
        locked, second, third = await claim_letters(store, lease=LEASE)

        async with harness.transaction() as transaction:
            await store.hold([locked], transaction=transaction)
            async with promptly():
                extended = await store.extend([locked, second, third], LEASE)
                settled = await store.settle([Settlement(locked, Retry()), Settlement(second, Retry())])
                clock.advance(LEASE)
                taken = bodies(await claim_letters(other))
            await store.ack([locked], transaction=transaction)

        assert list(extended) == [WriteResult.BUSY, WriteResult.WRITTEN, WriteResult.WRITTEN]
        assert list(settled) == [WriteResult.BUSY, WriteResult.WRITTEN]
        assert sorted(taken) == [b"second", b"third"]
        assert sorted(bodies(await store.dead(EVERYTHING))) == [b"second", b"third"]

    @needs("transactions", "repeatable_read")
    async def test_a_caller_at_repeatable_read_acks_a_letter_that_it_held_first(
        self, store: FullStore, harness: Harness
    ) -> None:
        await bury(store, message())
        letter = await claim_letter(store)

        async with harness.transaction(repeatable_read=True) as transaction:
            await store.hold([letter], transaction=transaction)
            await harness.write(transaction, "effect")
            async with promptly():
                assert await extend_one(store, letter, HOUR) is WriteResult.BUSY
            await store.ack([letter], transaction=transaction)

        assert await harness.written() == ["effect"]
        assert await store.stats() == {}

    # --------------------------------------------------------------------- dead letters are not messages

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


async def three_letters(store: FullStore, clock: ManualClock) -> list[DeadLetter]:
    """Three dead letters, one second apart, the highest priority last; the last died a second ago."""
    letters = []
    for priority, body in enumerate((b"first", b"second", b"third")):
        letters.append(await bury(store, message(body, priority=priority)))
        clock.advance(SECOND)
    return letters


async def taken_over(
    store: FullStore, other: FullStore, clock: ManualClock
) -> tuple[DeadDelivery, DeadDelivery]:
    """A dead letter twice: as `store` still believes it holds it, and as `other` now holds it."""
    await bury(store, message())
    late = await claim_letter(store, lease=LEASE)
    clock.advance(LEASE)
    return late, await claim_letter(other, lease=LEASE)


async def look(store: FullStore, *, limit: int = 100, lease_seconds: int = 30) -> Claimed:
    """A claim of the usual queue's dead letters, with what it says about the next look."""
    return await store.claim_dead([QUEUE], limit=limit, lease=SECOND * lease_seconds, token=fresh_token())


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
