"""With `dedup_for` a timer id stays taken for a while, even after its message is gone."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pytest

from nightmail.errors import TimerExists
from nightmail.message import OnConflict
from nightmail.outcome import Dead, Done, Outcome, Release
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    MICROSECOND,
    MINUTE,
    QUEUE,
    claim_bodies,
    claim_one,
    needs,
    settle_one,
    stored,
    timer,
    timer_owner,
)
from nightmail.testing.conformance.harness import Harness, RolledBack

REPLACING: Final[tuple[OnConflict, ...]] = ("replace", "earliest", "latest")


async def delivered(store: FullStore, timer_id: str = "reminder", outcome: Outcome | None = None) -> None:
    """A timer with a window of an hour, published and finished at the same instant."""
    await stored(store, timer(timer_id, b"first", dedup_for=HOUR))
    await settle_one(store, await claim_one(store), outcome or Done())


class DedupConformance:
    """The window in which a timer id stays taken."""

    @pytest.mark.parametrize("outcome", [Done(), Dead("rejected")], ids=["done", "dead"])
    async def test_a_name_stays_taken_for_the_window_after_its_message_has_ended(
        self, store: FullStore, clock: ManualClock, outcome: Outcome
    ) -> None:
        await delivered(store, outcome=outcome)

        clock.advance(HOUR - MICROSECOND)
        assert await store.publish(timer("reminder", b"second", dedup_for=HOUR)) is None

        clock.advance(MICROSECOND)
        assert await store.publish(timer("reminder", b"third", dedup_for=HOUR)) is not None
        assert await claim_bodies(store) == [b"third"]

    async def test_without_a_window_a_name_is_free_as_soon_as_its_message_has_ended(
        self, store: FullStore
    ) -> None:
        await store.publish(timer("reminder"))
        await settle_one(store, await claim_one(store), Done())

        assert await store.publish(timer("reminder", dedup_for=HOUR)) is not None

    async def test_a_publish_without_a_window_of_its_own_sees_the_window(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await delivered(store)

        assert await store.publish(timer("reminder", b"second")) is None
        clock.advance(HOUR)
        assert await store.publish(timer("reminder", b"third")) is not None

    @pytest.mark.parametrize("own_window", [None, HOUR], ids=["without a window", "with a window"])
    async def test_raise_raises_while_the_window_is_open(
        self, store: FullStore, own_window: timedelta | None
    ) -> None:
        await delivered(store)

        with pytest.raises(TimerExists) as raised:
            await store.publish(timer("reminder", b"second", on_conflict="raise", dedup_for=own_window))

        assert (raised.value.queue, raised.value.timer_id) == (QUEUE, "reminder")
        assert await store.peek() == []

    @pytest.mark.parametrize("policy", REPLACING)
    async def test_replace_earliest_and_latest_do_not_see_the_window(
        self, store: FullStore, policy: OnConflict
    ) -> None:
        await delivered(store)

        new = await store.publish(timer("reminder", b"second", on_conflict=policy))

        assert new is not None
        assert await timer_owner(store) == [(new, b"second")]

    async def test_a_message_that_did_not_see_the_window_does_not_close_it(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await delivered(store)
        await store.publish(timer("reminder", b"second", on_conflict="replace"))
        await settle_one(store, await claim_one(store), Done())

        assert await store.publish(timer("reminder", b"third")) is None
        clock.advance(HOUR)
        assert await store.publish(timer("reminder", b"fourth")) is not None

    async def test_a_re_arm_does_not_see_the_window(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"first", dedup_for=HOUR))
        own = await claim_one(store)

        new = await store.publish(timer("reminder", b"next"), own=own)

        assert new is not None
        await settle_one(store, own, Done())
        assert await timer_owner(store) == [(new, b"next")]

    async def test_a_re_arm_with_a_window_opens_it(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(timer("reminder", b"first"))
        own = await claim_one(store)
        await store.publish(timer("reminder", b"next", dedup_for=HOUR), own=own)
        await settle_one(store, own, Done())
        await settle_one(store, await claim_one(store), Done())

        assert await store.publish(timer("reminder", b"third")) is None
        clock.advance(HOUR)
        assert await store.publish(timer("reminder", b"fourth")) is not None

    async def test_a_re_arm_with_a_window_lets_it_run_from_the_re_arm(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", b"first", dedup_for=HOUR))
        own = await claim_one(store, lease=HOUR)
        clock.advance(MINUTE * 30)
        await store.publish(timer("reminder", b"next", dedup_for=HOUR), own=own)
        await settle_one(store, own, Done())
        await settle_one(store, await claim_one(store), Done())

        clock.advance(HOUR - MICROSECOND)
        assert await store.publish(timer("reminder", b"third")) is None
        clock.advance(MICROSECOND)
        assert await store.publish(timer("reminder", b"fourth")) is not None

    async def test_a_re_arm_with_a_shorter_window_does_not_shorten_it(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await stored(store, timer("reminder", dedup_for=HOUR))
        running = await claim_one(store)
        await stored(store, timer("reminder", dedup_for=MINUTE), own=running)
        for delivery in (running, await claim_one(store)):
            await settle_one(store, delivery, Done())

        clock.advance(HOUR - MICROSECOND)
        assert await store.publish(timer("reminder")) is None
        clock.advance(MICROSECOND)
        assert await store.publish(timer("reminder")) is not None

    async def test_a_refused_publish_does_not_prolong_the_window(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await delivered(store)
        clock.advance(MINUTE * 59)
        assert await store.publish(timer("reminder", b"second", dedup_for=HOUR)) is None
        with pytest.raises(TimerExists):
            await store.publish(timer("reminder", b"third", on_conflict="raise", dedup_for=HOUR))

        clock.advance(MINUTE)

        assert await store.publish(timer("reminder", b"fourth")) is not None

    async def test_a_publish_refused_because_the_timer_id_is_taken_opens_no_window(
        self, store: FullStore
    ) -> None:
        await store.publish(timer("reminder", b"first"))
        assert await store.publish(timer("reminder", b"second", dedup_for=HOUR)) is None
        await settle_one(store, await claim_one(store), Done())

        assert await store.publish(timer("reminder", b"third")) is not None

    async def test_a_publish_refused_because_the_name_is_running_opens_no_window(
        self, store: FullStore
    ) -> None:
        await store.publish(timer("reminder", b"first"))
        running = await claim_one(store)
        assert await store.publish(timer("reminder", b"second", dedup_for=HOUR)) is None
        await settle_one(store, running, Done())

        assert await store.publish(timer("reminder", b"third")) is not None

    async def test_a_name_stays_taken_by_its_message_after_the_window_has_closed(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        first = await store.publish(timer("reminder", b"first", due=HOUR * 3, dedup_for=HOUR))
        clock.advance(HOUR * 2)

        assert await store.publish(timer("reminder", b"second", dedup_for=HOUR)) is None

        assert await timer_owner(store) == [(first, b"first")]
        clock.advance(HOUR)
        await settle_one(store, await claim_one(store), Done())
        assert await store.publish(timer("reminder", b"third")) is not None

    async def test_a_window_counts_from_the_publish_whatever_the_delay(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", b"first", due=MINUTE * 50, dedup_for=HOUR))
        clock.advance(MINUTE * 50)
        await settle_one(store, await claim_one(store), Done())

        clock.advance(MINUTE * 10 - MICROSECOND)
        assert await store.publish(timer("reminder", b"second")) is None
        clock.advance(MICROSECOND)
        assert await store.publish(timer("reminder", b"third")) is not None

    async def test_a_window_is_for_one_name_in_one_queue(self, store: FullStore) -> None:
        await delivered(store)

        assert await store.publish(timer("another")) is not None
        assert await store.publish(timer("Reminder")) is not None
        assert await store.publish(timer("reminder ")) is not None
        assert await store.publish(timer("reminder", queue="refunds")) is not None

    async def test_another_process_sees_the_window(self, store: FullStore, other: FullStore) -> None:
        await delivered(store)

        assert await other.publish(timer("reminder", b"second")) is None

    # -------------------------------------------------------------------------------------- cancel

    async def test_a_cancel_ends_the_window(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"first", due=MINUTE, dedup_for=HOUR))

        assert await store.cancel(QUEUE, "reminder") is True

        second = await store.publish(timer("reminder", b"second"))
        assert second is not None
        assert await timer_owner(store) == [(second, b"second")]

    async def test_a_cancel_that_removed_nothing_leaves_the_window_open(self, store: FullStore) -> None:
        await delivered(store)

        assert await store.cancel(QUEUE, "reminder") is False

        assert await store.publish(timer("reminder", b"second")) is None

    async def test_a_cancel_of_a_running_message_leaves_its_window_open(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"first", dedup_for=HOUR))
        running = await claim_one(store)
        assert await store.cancel(QUEUE, "reminder") is False
        await settle_one(store, running, Done())

        assert await store.publish(timer("reminder", b"second")) is None

    async def test_cancel_all_ends_the_windows_of_what_it_removed_and_no_others(
        self, store: FullStore
    ) -> None:
        await delivered(store, "gone")
        await store.publish(timer("running", dedup_for=HOUR))
        running = await claim_one(store)
        await store.publish(timer("waiting", dedup_for=HOUR))

        assert await store.cancel_all(QUEUE) == 1

        await settle_one(store, running, Done())
        assert await store.publish(timer("gone")) is None
        assert await store.publish(timer("running")) is None
        assert await store.publish(timer("waiting")) is not None

    async def test_a_hand_back_and_a_reschedule_leave_the_window_as_it_was(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", b"first", dedup_for=HOUR))
        await settle_one(store, await claim_one(store), Release())
        assert await store.reschedule(QUEUE, "reminder", MINUTE) is True
        clock.advance(MINUTE)
        await settle_one(store, await claim_one(store), Done())

        assert await store.publish(timer("reminder", b"second")) is None
        clock.advance(HOUR - MINUTE)
        assert await store.publish(timer("reminder", b"third")) is not None

    # ------------------------------------------------------------------ in the caller's transaction

    @needs("transactions")
    async def test_a_rolled_back_publish_leaves_no_window(self, store: FullStore, harness: Harness) -> None:
        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await store.publish(timer("reminder", dedup_for=HOUR), transaction=transaction)
                raise RolledBack

        assert await store.publish(timer("reminder", b"first", dedup_for=HOUR)) is not None

    @needs("transactions")
    async def test_a_window_opens_with_the_commit(self, store: FullStore, harness: Harness) -> None:
        async with harness.transaction() as transaction:
            assert await store.publish(timer("reminder", dedup_for=HOUR), transaction=transaction) is not None
        await settle_one(store, await claim_one(store), Done())

        assert await store.publish(timer("reminder", b"second")) is None

    @needs("transactions")
    async def test_a_window_never_aborts_the_callers_transaction(
        self, store: FullStore, harness: Harness
    ) -> None:
        await delivered(store)

        async with harness.transaction() as transaction:
            await harness.write(transaction, "before")
            again = timer("reminder", dedup_for=HOUR)
            assert await store.publish(again, transaction=transaction) is None
            with pytest.raises(TimerExists):
                await store.publish(timer("reminder", on_conflict="raise"), transaction=transaction)
            await harness.write(transaction, "after")

        assert await harness.written() == ["after", "before"]
        assert await store.peek() == []

    @needs("transactions")
    async def test_a_rolled_back_cancel_leaves_the_window_open(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish(timer("reminder", b"first", dedup_for=HOUR))

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                assert await store.cancel(QUEUE, "reminder", transaction=transaction) is True
                raise RolledBack

        await settle_one(store, await claim_one(store), Done())
        assert await store.publish(timer("reminder", b"second")) is None
