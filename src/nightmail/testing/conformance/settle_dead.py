"""What `Dead` does to a message: the dead letter it becomes, and what that keeps."""

from __future__ import annotations

import pytest

from nightmail.outcome import Dead, Reason, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    DAY,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    bodies,
    claim_all,
    claim_one,
    message,
    only_letter,
    settle_one,
    stored,
    timer,
)


class SettleDeadConformance:
    """Settling with `Dead`: the dead letter, its counters, its texts."""

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
