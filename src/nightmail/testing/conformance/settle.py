"""What each outcome but `Dead` does to a message: done, retried, postponed, released."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    DAY,
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    QUEUE,
    SECOND,
    claim_all,
    claim_bodies,
    claim_one,
    message,
    settle_one,
    stored,
    timer,
)


class SettleConformance:
    """Settling: the outcomes, the two counters, the timer id."""

    # -------------------------------------------------------------------------------------------- done

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

    # ------------------------------------------------------------------------------------------- retry

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

    # ---------------------------------------------------------------------------------------- postpone

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

    # ----------------------------------------------------------------------------------------- release

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

    # ---------------------------------------------------------------------------------- the last error

    async def test_a_retried_message_shows_its_last_error_until_the_next_retry(
        self, store: FullStore
    ) -> None:
        id_ = await stored(store, message())
        fresh = await last_error(store, id_)

        seen = []
        for error in ("ConnectionError('refused')", "TimeoutError()", None):
            delivery = await claim_one(store)
            await settle_one(store, delivery, Retry(error=error))
            seen.append(await last_error(store, id_))

        assert fresh is None
        assert seen == ["ConnectionError('refused')", "TimeoutError()", None]

    async def test_a_last_error_is_shown_while_the_message_runs_and_after_its_lease_expired(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(store, message())
        await settle_one(store, await claim_one(store), Retry(error="TimeoutError()"))

        await claim_one(store, lease=LEASE)
        running = await last_error(store, id_)
        clock.advance(LEASE)
        expired = await last_error(store, id_)

        assert (running, expired) == ("TimeoutError()", "TimeoutError()")

    @pytest.mark.parametrize(
        ("error", "kept"),
        [
            pytest.param("x" * 256, "x" * 254 + "…", id="too long"),
            pytest.param("😀" * 255, "😀" * 255, id="as long as it may be"),
            pytest.param("first\nsecond\x1b[2J", "first\\nsecond\\x1b[2J", id="more than one line"),
            pytest.param("a\x00b\ud800c", "a\\x00b\\ud800c", id="what no store can keep"),
            pytest.param("\x00" * 300, "\\x00" * 63 + "\\x…", id="too long once it is spelled out"),
            pytest.param("", None, id="empty"),
        ],
    )
    async def test_a_last_error_is_one_line_of_at_most_255_characters(
        self, store: FullStore, error: str, kept: str | None
    ) -> None:
        id_ = await stored(store, message())

        assert await settle_one(store, await claim_one(store), Retry(error=error)) is WriteResult.WRITTEN

        assert await last_error(store, id_) == kept

    async def test_a_postponed_message_forgets_its_last_error(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(store, message())
        await settle_one(store, await claim_one(store), Retry(error="TimeoutError()"))

        await settle_one(store, await claim_one(store), Postpone(SECOND))

        assert await last_error(store, id_) is None

    async def test_a_message_that_is_handed_back_keeps_its_last_error(self, store: FullStore) -> None:
        id_ = await stored(store, message())
        await settle_one(store, await claim_one(store), Retry(error="TimeoutError()"))

        delivery = await claim_one(store)
        await settle_one(store, delivery, Release())
        released = await last_error(store, id_)
        delivery = await claim_one(store)
        await store.recall([QUEUE], delivery.token)
        recalled = await last_error(store, id_)

        assert (released, recalled) == ("TimeoutError()", "TimeoutError()")

    async def test_each_message_of_a_batch_has_its_own_last_error(self, store: FullStore) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(6)])
        first, done, dead, plain, held, last = await claim_all(store)
        await store.settle([Settlement(held, Retry(error="of held"))])
        (held,) = await claim_all(store)

        await store.settle(
            [
                Settlement(last, Retry(error="of last")),
                Settlement(dead, Dead("rejected", "of dead")),
                Settlement(plain, Retry()),
                Settlement(done, Done()),
                Settlement(held, Release()),
                Settlement(first, Retry(error="of first")),
            ]
        )

        found = await store.find([each.id for each in (first, plain, held, last)])
        assert {each.body: each.last_error for each in found} == {
            b"0": "of first",
            b"3": None,
            b"4": "of held",
            b"5": "of last",
        }
        assert [letter.error for letter in await store.dead(DeadFilter())] == ["of dead"]

    async def test_a_lost_lease_writes_no_last_error(self, store: FullStore, clock: ManualClock) -> None:
        id_ = await stored(store, message())
        late = await claim_one(store, lease=LEASE)
        clock.advance(LEASE)
        await claim_one(store)

        assert await settle_one(store, late, Retry(error="too late")) is WriteResult.LOST

        assert await last_error(store, id_) is None

    # ------------------------------------------------------------------------------------ the timer id

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


async def last_error(store: FullStore, id_: int) -> str | None:
    """The last error of this message, as an operator sees it."""
    (found,) = await store.find([id_])
    return found.last_error
