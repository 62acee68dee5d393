"""What each outcome does to a message, alone and in a mixed batch."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, Postpone, Reason, Release, Retry, WriteResult
from nightmail.records import DeadFilter, DeadLetter
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
    message,
    needs,
    promptly,
    settle_one,
    stored,
    timer,
)
from nightmail.testing.conformance.harness import Harness, RolledBack

DAY = timedelta(days=1)


class SettleConformance:
    """Settling: the five outcomes, the two counters, the dead letters, the answers."""

    # ----------------------------------------------------------------------------------------- done

    async def test_a_done_message_is_gone(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())

        assert await settle_one(store, await claim_one(store), Done()) is WriteResult.WRITTEN

        clock.advance(DAY)
        assert await claim_all(other) == []
        assert await store.peek() == []
        assert await store.dead(DeadFilter()) == []

    async def test_done_ends_one_message_and_no_other(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])
        _, b, _ = await claim_all(store, lease=LEASE)

        await settle_one(store, b, Done())

        clock.advance(LEASE)
        assert await claim_bodies(store) == [b"a", b"c"]

    # ---------------------------------------------------------------------------------------- retry

    async def test_a_retried_message_is_due_again_after_its_delay_and_not_before(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        clock.advance(SECOND * 3)

        assert await settle_one(store, delivery, Retry(SECOND * 10)) is WriteResult.WRITTEN

        due_at = clock.now() + SECOND * 10
        clock.advance(SECOND * 10 - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        assert (await claim_one(store)).due_at == due_at

    async def test_a_retry_without_delay_is_due_at_the_moment_of_settling(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        clock.advance(SECOND * 3)

        await settle_one(store, delivery, Retry())

        assert (await claim_one(store)).due_at == clock.now()

    async def test_every_retry_counts_one_attempt(self, store: FullStore) -> None:
        await store.publish(message())

        counted = []
        for _ in range(4):
            delivery = await claim_one(store)
            counted.append((delivery.attempts, delivery.attempt, delivery.deliveries))
            await settle_one(store, delivery, Retry())

        assert counted == [(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 4, 1)]

    async def test_a_retry_explains_the_deliveries_before_it(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        third = await claim_one(store, lease=LEASE)
        assert (third.deliveries, third.attempts) == (3, 0)

        await settle_one(store, third, Retry())

        fourth = await claim_one(store)
        assert (fourth.deliveries, fourth.attempts) == (1, 1)

    async def test_a_retry_remembers_when_the_first_and_the_last_attempt_were_claimed(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        start = clock.now()
        await store.publish(message())

        seen = []
        for _ in range(3):
            delivery = await claim_one(store)
            seen.append((delivery.first_attempt_at, delivery.last_attempt_at))
            clock.advance(SECOND)
            await settle_one(store, delivery, Retry(MINUTE - SECOND))
            clock.advance(MINUTE - SECOND)

        assert seen == [(None, None), (start, start), (start, start + MINUTE)]

    async def test_a_lost_lease_is_not_remembered_as_an_attempt(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await claim_one(store, lease=LEASE)
        clock.advance(LEASE)

        again = await claim_one(store)

        assert (again.first_attempt_at, again.last_attempt_at) == (None, None)

    async def test_a_retried_message_keeps_everything_else(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        published_at = clock.now()
        id_ = await stored(
            store,
            timer(
                "reminder",
                b"body",
                headers={"trace": "abc"},
                expires_in=HOUR,
                ordering_key="customer-7",
                priority=4,
            ),
        )
        await settle_one(store, await claim_one(store), Retry(SECOND))
        clock.advance(SECOND)

        again = await claim_one(store)

        assert (again.id, again.queue, again.body) == (id_, QUEUE, b"body")
        assert (again.timer_id, again.ordering_key, again.priority) == ("reminder", "customer-7", 4)
        assert again.headers == {"trace": "abc"}
        assert (again.published_at, again.expires_at) == (published_at, published_at + HOUR)
        assert again.superseded is False

    async def test_a_retried_message_waits_and_is_seen_waiting(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder"))
        await settle_one(store, await claim_one(store), Retry(MINUTE))

        (pending,) = await store.peek()

        assert (pending.timer_id, pending.attempts) == ("reminder", 1)
        assert pending.due_at == clock.now() + MINUTE
        assert await store.publish(timer("reminder")) is None

    async def test_a_retry_delayed_by_years_is_kept_for_years(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await settle_one(store, await claim_one(store), Retry(DAY * 3650))

        clock.advance(DAY * 3650 - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        assert (await claim_one(store)).attempts == 1

    # ------------------------------------------------------------------------------------- postpone

    async def test_a_postponed_message_is_due_again_after_its_delay_and_not_before(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        clock.advance(SECOND * 3)

        assert await settle_one(store, delivery, Postpone(SECOND * 10)) is WriteResult.WRITTEN

        due_at = clock.now() + SECOND * 10
        clock.advance(SECOND * 10 - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        assert (await claim_one(store)).due_at == due_at

    async def test_a_postponement_starts_both_counters_afresh(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        for _ in range(3):
            await settle_one(store, await claim_one(store), Retry())
        await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        worn = await claim_one(store)
        assert (worn.attempts, worn.deliveries) == (3, 2)

        await settle_one(store, worn, Postpone(SECOND))

        clock.advance(SECOND)
        fresh = await claim_one(store)
        assert (fresh.attempts, fresh.deliveries) == (0, 1)

    async def test_a_postponement_forgets_earlier_attempts(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await settle_one(store, await claim_one(store), Retry())
        await settle_one(store, await claim_one(store), Postpone(SECOND))
        clock.advance(SECOND)

        fresh = await claim_one(store)

        assert (fresh.first_attempt_at, fresh.last_attempt_at) == (None, None)

    async def test_a_message_may_be_postponed_for_ever_without_wearing_out(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"is the build done?"))

        for _ in range(25):
            delivery = await claim_one(store)
            assert (delivery.attempts, delivery.deliveries) == (0, 1)
            await settle_one(store, delivery, Postpone(SECOND * 2))
            clock.advance(SECOND * 2)

        assert await claim_bodies(store) == [b"is the build done?"]
        assert await store.dead(DeadFilter()) == []

    async def test_postponing_by_nothing_still_waits_a_tenth_of_a_second(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await settle_one(store, await claim_one(store), Postpone(timedelta(0)))

        clock.advance(timedelta(milliseconds=100) - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        assert len(await claim_all(store)) == 1

    # -------------------------------------------------------------------------------------- release

    async def test_a_released_message_keeps_its_due_time(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        due_at = clock.now()
        await store.publish(message())
        delivery = await claim_one(store)
        clock.advance(SECOND * 3)

        assert await settle_one(store, delivery, Release()) is WriteResult.WRITTEN

        assert (await claim_one(other)).due_at == due_at

    async def test_a_released_message_keeps_its_place(self, store: FullStore, clock: ManualClock) -> None:
        for body in (b"first", b"second", b"third"):
            await store.publish(message(body))
            clock.advance(SECOND)
        (first,) = await claim_all(store, limit=1)

        await settle_one(store, first, Release())

        assert await claim_bodies(store) == [b"first", b"second", b"third"]

    async def test_messages_released_together_keep_their_order(
        self, store: FullStore, other: FullStore
    ) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(6)])
        taken = await claim_all(store, limit=4)

        await store.settle([Settlement(delivery, Release()) for delivery in reversed(taken)])

        assert await claim_bodies(other) == [b"%d" % number for number in range(6)]

    async def test_a_release_undoes_the_count_of_its_claim(self, store: FullStore) -> None:
        await store.publish(message())

        for _ in range(5):
            delivery = await claim_one(store)
            assert (delivery.deliveries, delivery.attempts) == (1, 0)
            await settle_one(store, delivery, Release())

    async def test_a_release_keeps_what_earlier_lost_leases_counted(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        await settle_one(store, await claim_one(store), Retry())
        await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        third = await claim_one(store)
        assert (third.deliveries, third.attempts) == (3, 1)

        await settle_one(store, third, Release())

        again = await claim_one(store)
        assert (again.deliveries, again.attempts) == (3, 1)

    async def test_a_release_is_not_remembered_as_an_attempt(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        failed_at = clock.now()
        await store.publish(message())
        await settle_one(store, await claim_one(store), Retry())
        clock.advance(SECOND)
        await settle_one(store, await claim_one(store), Release())

        again = await claim_one(store)

        assert (again.first_attempt_at, again.last_attempt_at) == (failed_at, failed_at)

    async def test_a_released_message_keeps_its_name(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"first"))
        await settle_one(store, await claim_one(store), Release())

        assert await store.publish(timer("reminder", b"second")) is None
        assert await claim_bodies(store) == [b"first"]

    # ----------------------------------------------------------------------------------------- dead

    async def test_a_dead_message_is_a_dead_letter_at_once_and_never_claimed_again(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"hopeless"))

        assert await settle_one(store, await claim_one(store), Dead("rejected", "no")) is WriteResult.WRITTEN

        assert bodies(await other.dead(DeadFilter())) == [b"hopeless"]
        clock.advance(DAY)
        assert await claim_all(store) == []
        assert await store.peek() == []

    async def test_a_dead_letter_keeps_everything(self, store: FullStore, clock: ManualClock) -> None:
        published_at = clock.now()
        id_ = await stored(
            store,
            timer(
                "reminder",
                b"body\x00\xff",
                headers={"trace": "abc", "nested": [1, None]},
                ordering_key="customer-7",
                priority=4,
            ),
        )
        await settle_one(store, await claim_one(store), Retry(MINUTE))
        clock.advance(MINUTE)
        await settle_one(store, await claim_one(store), Retry(MINUTE))
        clock.advance(MINUTE)
        await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        last = await claim_one(store)
        clock.advance(SECOND)

        await settle_one(store, last, Dead(Reason.RETRIES_EXHAUSTED, "KeyError: 'x'"))

        letter = await only_letter(store)
        assert letter.message_id == id_
        assert (letter.queue, letter.body) == (QUEUE, b"body\x00\xff")
        assert letter.headers == {"trace": "abc", "nested": [1, None]}
        assert (letter.reason, letter.error) == ("retries_exhausted", "KeyError: 'x'")
        assert (letter.timer_id, letter.ordering_key, letter.priority) == ("reminder", "customer-7", 4)
        # Two retries and the last attempt; two claims since the second retry.
        assert (letter.attempts, letter.deliveries) == (3, 2)
        assert (letter.first_attempt_at, letter.last_attempt_at) == (published_at, last.claimed_at)
        assert (letter.published_at, letter.died_at) == (published_at, clock.now())

    async def test_a_dead_letter_counts_no_attempt_when_its_handler_did_not_run(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        failed_at = clock.now()
        await store.publish_batch([message(b"never ran"), message(b"ran once")])
        never_ran, ran_once = await claim_all(store)
        await settle_one(store, ran_once, Retry(SECOND))
        await settle_one(store, never_ran, Dead(Reason.EXPIRED, ran=False))
        clock.advance(SECOND)
        await settle_one(store, await claim_one(store), Dead(Reason.EXPIRED, ran=False))

        once, never = await store.dead(DeadFilter())

        assert (never.body, never.attempts) == (b"never ran", 0)
        assert (never.first_attempt_at, never.last_attempt_at) == (None, None)
        assert (once.body, once.attempts) == (b"ran once", 1)
        assert (once.first_attempt_at, once.last_attempt_at) == (failed_at, failed_at)

    async def test_a_message_that_dies_of_its_first_run_had_one_attempt(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        delivery = await claim_one(store)
        clock.advance(SECOND)
        await settle_one(store, delivery, Dead("rejected"))

        letter = await only_letter(store)

        assert (letter.attempts, letter.deliveries) == (1, 1)
        assert (letter.first_attempt_at, letter.last_attempt_at) == (delivery.claimed_at, delivery.claimed_at)

    async def test_a_dead_letter_needs_no_error(self, store: FullStore) -> None:
        await store.publish(message())
        await settle_one(store, await claim_one(store), Dead("a reason of the handler's own"))

        letter = await only_letter(store)

        assert letter.reason == "a reason of the handler's own"
        assert letter.error is None

    async def test_a_dead_letter_is_visible_at_once_whatever_delay_its_message_had(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"delayed", due=DAY * 30))
        clock.advance(DAY * 30)
        await settle_one(store, await claim_one(store), Retry(DAY))
        clock.advance(DAY)

        await settle_one(store, await claim_one(store), Dead("rejected"))

        assert bodies(await store.dead(DeadFilter())) == [b"delayed"]
        assert (await only_letter(store)).died_at == clock.now()

    async def test_the_same_timer_id_may_die_twice(self, store: FullStore, clock: ManualClock) -> None:
        for body in (b"first", b"second"):
            await store.publish(timer("reminder", body))
            await settle_one(store, await claim_one(store), Dead("rejected"))
            clock.advance(SECOND)

        newer, older = await store.dead(DeadFilter())

        assert (newer.body, older.body) == (b"second", b"first")
        assert (newer.timer_id, older.timer_id) == ("reminder", "reminder")
        assert newer.id != older.id
        assert newer.message_id != older.message_id

    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            pytest.param("", "", id="empty"),
            pytest.param("a\x00b", "a\\x00b", id="NUL"),
            pytest.param("half \ud83c of it", "half \\ud83c of it", id="half a character"),
            pytest.param("żółć 🌙 \u202e", "żółć 🌙 \u202e", id="text"),
            pytest.param(
                "'; drop table x; -- %s :name $1 {}", "'; drop table x; -- %s :name $1 {}", id="syntax"
            ),
        ],
    )
    async def test_a_dead_letter_keeps_any_error_text(self, store: FullStore, given: str, kept: str) -> None:
        await store.publish(message())

        assert await settle_one(store, await claim_one(store), Dead("rejected", given)) is WriteResult.WRITTEN

        assert (await only_letter(store)).error == kept

    async def test_an_error_text_of_a_hundred_kilobytes_is_cut_and_does_not_keep_its_message_alive(
        self, store: FullStore
    ) -> None:
        await store.publish(message())

        await settle_one(store, await claim_one(store), Dead("rejected", "🌙" * 102_400))

        error = (await only_letter(store)).error
        assert error is not None
        assert len(error) == 8192
        assert error.startswith("🌙🌙🌙")
        assert error.endswith("…[truncated]")

    async def test_a_reason_of_a_hundred_kilobytes_is_cut(self, store: FullStore) -> None:
        await store.publish(message())

        await settle_one(store, await claim_one(store), Dead("🌙" * 102_400))

        reason = (await only_letter(store)).reason
        assert len(reason) == 255
        assert reason.endswith("…[truncated]")

    # --------------------------------------------------------------------------------- the timer id

    @pytest.mark.parametrize(
        "outcome", [pytest.param(Done(), id="done"), pytest.param(Dead("rejected"), id="dead")]
    )
    async def test_a_name_is_free_again_once_its_message_has_ended(
        self, store: FullStore, outcome: Outcome
    ) -> None:
        await store.publish(timer("reminder", b"first"))
        running = await claim_one(store)
        assert await store.publish(timer("reminder", b"too soon")) is None

        await settle_one(store, running, outcome)

        assert await store.publish(timer("reminder", b"second")) is not None
        assert await claim_bodies(store) == [b"second"]

    # ---------------------------------------------------------------------------------- the answers

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

    @pytest.mark.parametrize(
        "outcome",
        [
            pytest.param(Done(), id="done"),
            pytest.param(Retry(MINUTE), id="retry"),
            pytest.param(Postpone(MINUTE), id="postpone"),
            pytest.param(Dead("rejected"), id="dead"),
            pytest.param(Release(), id="release"),
        ],
    )
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


async def only_letter(store: FullStore) -> DeadLetter:
    """The one dead letter there is."""
    letters = await store.dead(DeadFilter())
    assert len(letters) == 1, f"expected one dead letter, not {len(letters)}"
    return letters[0]
