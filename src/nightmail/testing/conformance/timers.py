"""At most one message of a queue owns a timer id: publishing a free one, and one that a waiting message owns."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import pytest

from nightmail.errors import LeaseLost, TimerExists
from nightmail.message import OnConflict
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry, WriteResult
from nightmail.store import FullStore
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
    expired_timer,
    extend_one,
    message,
    needs,
    promptly,
    running_timer,
    settle_one,
    stored,
    timer,
    timer_owner,
)
from nightmail.testing.conformance.harness import Harness, RolledBack

EVERY_POLICY: Final[tuple[OnConflict, ...]] = ("skip", "replace", "earliest", "latest", "raise")


class TimersConformance:
    """Publishing a timer id that is free, and one that a waiting message owns."""

    async def test_a_free_name_is_taken(self, store: FullStore) -> None:
        id_ = await store.publish(timer("reminder", b"first"))

        assert await timer_owner(store) == [(id_, b"first")]
        delivery = await claim_one(store)
        assert (delivery.id, delivery.timer_id, delivery.superseded) == (id_, "reminder", False)

    @pytest.mark.parametrize("policy", EVERY_POLICY)
    async def test_with_a_free_name_every_policy_stores(self, store: FullStore, policy: OnConflict) -> None:
        id_ = await store.publish(timer("reminder", b"first", on_conflict=policy))

        assert id_ is not None
        assert await timer_owner(store) == [(id_, b"first")]

    @pytest.mark.parametrize("outcome", [Done(), Dead("rejected")], ids=["done", "dead"])
    async def test_a_name_is_free_again_once_its_owner_has_ended(
        self, store: FullStore, outcome: Outcome
    ) -> None:
        await settle_one(store, await running_timer(store), outcome)

        second = await stored(store, timer("reminder", b"second"))

        assert await timer_owner(store) == [(second, b"second")]

    @pytest.mark.parametrize(
        "outcome", [Retry(after=HOUR), Postpone(after=HOUR), Release()], ids=["retry", "postpone", "release"]
    )
    async def test_a_name_stays_taken_while_its_owner_comes_back(
        self, store: FullStore, outcome: Outcome
    ) -> None:
        first = await running_timer(store)
        await settle_one(store, first, outcome)

        assert await store.publish(timer("reminder", b"second")) is None
        assert await timer_owner(store) == [(first.id, b"old")]

    async def test_the_same_name_in_another_queue_is_another_name(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"order", queue="orders"))
        await store.publish(timer("reminder", b"refund", queue="refunds"))
        await store.publish(timer("reminder", b"new refund", queue="refunds", on_conflict="replace"))

        assert bodies(await store.peek("orders")) == [b"order"]
        assert bodies(await store.peek("refunds")) == [b"new refund"]
        assert await claim_bodies(store, "orders", "refunds") == [b"order", b"new refund"]

    async def test_messages_without_a_name_never_conflict(self, store: FullStore) -> None:
        await store.publish(message(b"same"))
        await store.publish(message(b"same"))

        assert await claim_bodies(store) == [b"same", b"same"]

    # --------------------------------------------------------- when a waiting message owns the timer id

    async def test_skip_stores_nothing_and_leaves_the_first_as_it_was(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        now = clock.now()
        first = await stored(store, timer("reminder", b"first", due=MINUTE, headers={"n": 1}, priority=2))
        clock.advance(SECOND)

        second = await store.publish(timer("reminder", b"second", headers={"n": 2}, priority=9))

        assert second is None
        (pending,) = await store.peek()
        assert (pending.id, pending.body, pending.headers, pending.priority) == (first, b"first", {"n": 1}, 2)
        assert (pending.due_at, pending.published_at) == (now + MINUTE, now)

    async def test_raise_raises_and_leaves_the_first_as_it_was(self, store: FullStore) -> None:
        first = await stored(store, timer("reminder", b"first"))

        with pytest.raises(TimerExists) as raised:
            await store.publish(timer("reminder", b"second", on_conflict="raise"))

        assert (raised.value.queue, raised.value.timer_id) == (QUEUE, "reminder")
        assert await timer_owner(store) == [(first, b"first")]

    async def test_replace_overwrites_everything_but_id_and_place(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        first = await stored(
            store,
            timer(
                "reminder",
                b"first",
                headers={"n": 1},
                due=MINUTE,
                priority=2,
                ordering_key="a",
                expires_in=HOUR,
            ),
        )
        now = clock.advance(SECOND)

        second = await store.publish(
            timer(
                "reminder",
                b"second",
                headers={"n": 2},
                due=MINUTE * 5,
                priority=7,
                ordering_key="b",
                expires_in=HOUR * 2,
                on_conflict="replace",
            )
        )

        assert second == first
        (pending,) = await store.peek()
        assert (pending.id, pending.timer_id) == (first, "reminder")
        assert (pending.body, pending.headers) == (b"second", {"n": 2})
        assert (pending.due_at, pending.published_at) == (now + MINUTE * 5, now)
        assert pending.expires_at == now + HOUR * 2
        assert (pending.priority, pending.ordering_key) == (7, "b")

    async def test_replace_takes_away_what_the_new_message_does_not_have(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(
            timer("reminder", b"first", headers={"n": 1}, priority=2, ordering_key="a", expires_in=HOUR)
        )

        await store.publish(timer("reminder", b"second", on_conflict="replace"))

        delivery = await claim_one(store)
        assert (delivery.body, delivery.headers, delivery.priority) == (b"second", {}, 0)
        assert (delivery.ordering_key, delivery.expires_at) == (None, None)

    async def test_replace_starts_both_counters_afresh(self, store: FullStore, clock: ManualClock) -> None:
        first = await running_timer(store)
        await settle_one(store, first, Retry(error="TimeoutError()"))
        await claim_one(store)
        clock.advance(LEASE)

        await store.publish(timer("reminder", b"new", on_conflict="replace"))

        (fresh,) = await store.find([first.id])
        assert fresh.last_error is None
        delivery = await claim_one(store)
        assert (delivery.id, delivery.body) == (first.id, b"new")
        assert (delivery.attempts, delivery.deliveries) == (0, 1)
        assert (delivery.first_attempt_at, delivery.last_attempt_at) == (None, None)

    async def test_a_replaced_message_keeps_its_place_in_its_ordering_key(self, store: FullStore) -> None:
        await store.publish(timer("reminder", b"first", ordering_key="k"))
        await store.publish(message(b"second", ordering_key="k"))

        await store.publish(timer("reminder", b"first, corrected", ordering_key="k", on_conflict="replace"))

        assert await claim_bodies(store) == [b"first, corrected"]

    async def test_replace_again_and_again_leaves_one_message(self, store: FullStore) -> None:
        ids = {
            await stored(store, timer("reminder", b"%d" % number, on_conflict="replace"))
            for number in range(5)
        }

        assert len(ids) == 1
        assert await claim_bodies(store) == [b"4"]

    @pytest.mark.parametrize(
        ("policy", "shift", "stores"),
        [
            pytest.param("earliest", -MICROSECOND, True, id="earliest, a microsecond earlier"),
            pytest.param("earliest", timedelta(0), False, id="earliest, at the same moment"),
            pytest.param("earliest", MICROSECOND, False, id="earliest, a microsecond later"),
            pytest.param("latest", -MICROSECOND, False, id="latest, a microsecond earlier"),
            pytest.param("latest", timedelta(0), False, id="latest, at the same moment"),
            pytest.param("latest", MICROSECOND, True, id="latest, a microsecond later"),
        ],
    )
    async def test_earliest_and_latest_compare_due_times_strictly(
        self, store: FullStore, clock: ManualClock, policy: OnConflict, shift: timedelta, stores: bool
    ) -> None:
        moment = clock.now() + HOUR
        first = await stored(store, timer("reminder", b"first", due=moment))

        second = await store.publish(timer("reminder", b"second", due=moment + shift, on_conflict=policy))

        assert second == (first if stores else None)
        (pending,) = await store.peek()
        assert pending.id == first
        assert pending.body == (b"second" if stores else b"first")
        assert pending.due_at == (moment + shift if stores else moment)

    @pytest.mark.parametrize(
        ("policy", "due"), [("earliest", MINUTE), ("latest", HOUR * 2)], ids=["earliest", "latest"]
    )
    async def test_earliest_and_latest_overwrite_like_replace(
        self, store: FullStore, clock: ManualClock, policy: OnConflict, due: timedelta
    ) -> None:
        first = await running_timer(store)
        await settle_one(store, first, Retry(after=HOUR))
        now = clock.advance(SECOND)

        await store.publish(
            timer("reminder", b"new", headers={"n": 2}, due=due, priority=4, on_conflict=policy)
        )

        clock.advance(due)
        delivery = await claim_one(store)
        assert (delivery.id, delivery.body, delivery.headers) == (first.id, b"new", {"n": 2})
        assert (delivery.priority, delivery.attempts, delivery.deliveries) == (4, 0, 1)
        assert (delivery.published_at, delivery.due_at) == (now, now + due)

    async def test_earliest_with_a_past_moment_does_not_beat_a_message_due_now(
        self, store: FullStore
    ) -> None:
        await store.publish(timer("reminder", b"first"))

        assert await store.publish(timer("reminder", b"second", due=-HOUR, on_conflict="earliest")) is None
        assert await claim_bodies(store) == [b"first"]

    # --------------------------------------- when the owner's lease has expired: it waits like any other

    async def test_skip_against_an_expired_lease_stores_nothing_and_leaves_the_holder_its_token(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        holder = await expired_timer(store, clock)

        assert await store.publish(timer("reminder", b"new")) is None

        assert await settle_one(store, holder, Done()) is WriteResult.WRITTEN
        assert await store.peek() == []

    async def test_raise_against_an_expired_lease_raises_and_leaves_the_holder_its_token(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        holder = await expired_timer(store, clock)

        with pytest.raises(TimerExists):
            await store.publish(timer("reminder", b"new", on_conflict="raise"))

        assert await settle_one(store, holder, Done()) is WriteResult.WRITTEN
        assert await store.peek() == []

    async def test_earliest_against_an_expired_lease_keeps_what_was_due_before(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        holder = await expired_timer(store, clock)

        assert await store.publish(timer("reminder", b"new", on_conflict="earliest")) is None

        assert await settle_one(store, holder, Done()) is WriteResult.WRITTEN
        assert await store.peek() == []

    @pytest.mark.parametrize("policy", ["replace", "latest"])
    async def test_replace_and_latest_overwrite_an_expired_lease_in_place_and_its_holder_is_told(
        self, store: FullStore, clock: ManualClock, policy: OnConflict
    ) -> None:
        holder = await expired_timer(store, clock)

        assert await store.publish(timer("reminder", b"new", on_conflict=policy)) == holder.id

        assert await settle_one(store, holder, Done()) is WriteResult.LOST
        assert await extend_one(store, holder) is WriteResult.LOST
        delivery = await claim_one(store)
        assert (delivery.id, delivery.body) == (holder.id, b"new")
        assert (delivery.attempts, delivery.deliveries, delivery.superseded) == (0, 1, False)

    @needs("transactions")
    async def test_a_message_replaced_after_its_lease_expired_cannot_be_acked_by_its_former_holder(
        self, store: FullStore, clock: ManualClock, harness: Harness
    ) -> None:
        holder = await expired_timer(store, clock)
        await store.publish(timer("reminder", b"new", on_conflict="replace"))

        with pytest.raises(LeaseLost):
            async with harness.transaction() as transaction:
                await harness.write(transaction, "effect of the old")
                await store.ack([holder], transaction=transaction)

        assert await harness.written() == []
        assert await claim_bodies(store) == [b"new"]

    # ------------------------------------------------------------------ in the caller's transaction

    @needs("transactions")
    async def test_a_rollback_gives_a_timer_id_back_that_had_several_owners_in_the_transaction(
        self, store: FullStore, harness: Harness
    ) -> None:
        first = await store.publish(timer("reminder", b"first"))

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                for body in (b"second", b"third"):
                    assert await store.cancel(QUEUE, "reminder", transaction=transaction)
                    await stored(store, timer("reminder", body), transaction=transaction)
                raise RolledBack

        assert await timer_owner(store) == [(first, b"first")]

    @needs("transactions")
    async def test_a_conflict_never_aborts_the_callers_transaction(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish(timer("reminder", b"first"))

        async with harness.transaction() as transaction:
            await harness.write(transaction, "before")
            assert await store.publish(timer("reminder", b"second"), transaction=transaction) is None
            await harness.write(transaction, "between")
            with pytest.raises(TimerExists):
                await store.publish(timer("reminder", b"third", on_conflict="raise"), transaction=transaction)
            await harness.write(transaction, "after")
            assert await store.publish(message(b"unnamed"), transaction=transaction) is not None

        assert await harness.written() == ["after", "before", "between"]
        assert await claim_bodies(store) == [b"first", b"unnamed"]

    @needs("transactions")
    async def test_a_conflict_within_one_transaction_is_a_conflict_too(
        self, store: FullStore, harness: Harness
    ) -> None:
        async with harness.transaction() as transaction:
            first = await store.publish(timer("reminder", b"first"), transaction=transaction)
            assert await store.publish(timer("reminder", b"second"), transaction=transaction) is None
            with pytest.raises(TimerExists):
                await store.publish(timer("reminder", b"third", on_conflict="raise"), transaction=transaction)
            replaced = await store.publish(
                timer("reminder", b"fourth", on_conflict="replace"), transaction=transaction
            )

        assert replaced == first
        assert await timer_owner(store) == [(first, b"fourth")]

    @needs("transactions")
    @pytest.mark.parametrize("policy", ["replace", "earliest", "latest"])
    async def test_a_rolled_back_replacement_leaves_the_first_as_it_was(
        self, store: FullStore, harness: Harness, clock: ManualClock, policy: OnConflict
    ) -> None:
        due = clock.now() + HOUR
        first = await stored(store, timer("reminder", b"first", due=due, headers={"n": 1}))
        other_due = due + MINUTE if policy == "latest" else due - MINUTE

        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                replacement = timer("reminder", b"second", due=other_due, on_conflict=policy)
                assert await store.publish(replacement, transaction=transaction) == first
                raise RolledBack

        (pending,) = await store.peek()
        assert (pending.id, pending.body, pending.headers) == (first, b"first", {"n": 1})
        assert pending.due_at == due

    @needs("transactions", "concurrent_writers")
    @pytest.mark.parametrize("policy", ["skip", "raise"])
    async def test_a_conflict_in_an_open_transaction_does_not_hide_the_message(
        self, store: FullStore, harness: Harness, policy: OnConflict
    ) -> None:
        await store.publish(timer("reminder", b"first"))

        async with harness.transaction() as transaction:
            if policy == "skip":
                assert await store.publish(timer("reminder"), transaction=transaction) is None
            else:
                with pytest.raises(TimerExists):
                    await store.publish(timer("reminder", on_conflict="raise"), transaction=transaction)

            async with promptly():
                assert await claim_bodies(store) == [b"first"]

    @needs("transactions", "concurrent_writers")
    @pytest.mark.parametrize("window", [None, HOUR], ids=["without a window", "with a window"])
    async def test_of_two_open_transactions_with_one_free_name_the_second_gives_way(
        self, store: FullStore, harness: Harness, window: timedelta | None
    ) -> None:
        begun = asyncio.Event()

        async def second() -> int | None:
            async with harness.transaction() as transaction:
                await harness.write(transaction, "second")
                begun.set()
                again = timer("reminder", b"second", dedup_for=window)
                return await store.publish(again, transaction=transaction)

        async with promptly():
            async with harness.transaction() as transaction:
                await harness.write(transaction, "first")
                once = timer("reminder", b"first", dedup_for=window)
                first = await store.publish(once, transaction=transaction)
                waits = asyncio.create_task(second())
                await begun.wait()
            assert await waits is None

        assert await harness.written() == ["first", "second"]
        assert await timer_owner(store) == [(first, b"first")]

    @needs("transactions", "concurrent_writers")
    @pytest.mark.parametrize("window", [None, HOUR], ids=["without a window", "with a window"])
    async def test_of_two_open_transactions_with_one_free_name_the_second_takes_it_when_the_first_rolls_back(
        self, store: FullStore, harness: Harness, window: timedelta | None
    ) -> None:
        begun = asyncio.Event()

        async def second() -> int | None:
            async with harness.transaction() as transaction:
                begun.set()
                again = timer("reminder", b"second", dedup_for=window)
                return await store.publish(again, transaction=transaction)

        async with promptly():
            with pytest.raises(RolledBack):
                async with harness.transaction() as transaction:
                    once = timer("reminder", b"first", dedup_for=window)
                    await store.publish(once, transaction=transaction)
                    waits = asyncio.create_task(second())
                    await begun.wait()
                    raise RolledBack
            id_ = await waits

        assert await timer_owner(store) == [(id_, b"second")]

    # ----------------------------------------------------------------------------- at the same time

    @pytest.mark.parametrize("window", [None, HOUR], ids=["without a window", "with a window"])
    async def test_many_publishers_of_one_free_name_store_one_message(
        self, store: FullStore, other: FullStore, window: timedelta | None
    ) -> None:
        publishers = [store, other] * 4
        once = timer("reminder", dedup_for=window)

        ids = await asyncio.gather(*(publisher.publish(once) for publisher in publishers))

        (winner,) = [id_ for id_ in ids if id_ is not None]
        assert await timer_owner(store) == [(winner, b"hello")]

    @pytest.mark.parametrize("policy", ["replace", "latest"])
    async def test_a_replacement_that_races_with_a_claim_is_always_stored(
        self, store: FullStore, other: FullStore, policy: OnConflict
    ) -> None:
        for round_ in range(10):
            name = f"reminder-{round_}"
            await store.publish(timer(name, b"old"))

            replacement = timer(name, b"new", due=MICROSECOND, on_conflict=policy)
            new, claimed = await asyncio.gather(store.publish(replacement), claim_all(other))

            # Either it came first and overwrote the old one, or it waits while the old one runs.
            assert new is not None
            assert bodies(claimed) in ([], [b"old"])
            assert await timer_owner(store, name) == [(new, b"new")]
            await store.cancel(QUEUE, name)
