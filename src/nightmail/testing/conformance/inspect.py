"""What an operator sees, without claiming anything: waiting messages, dead letters, statistics."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nightmail.outcome import Dead, Done, Postpone, Release, Retry, WriteResult
from nightmail.records import DeadFilter, DeadLetter, QueueStats
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    EVERYTHING,
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
    message,
    needs,
    running_timer,
    settle_one,
    stored,
    timer,
    timer_owner,
)
from nightmail.testing.conformance.harness import Harness


async def buried(
    store: FullStore,
    body: bytes = b"hello",
    *,
    queue: str = QUEUE,
    reason: str = "rejected",
    error: str | None = None,
) -> int:
    """A message settled as dead at once; its message id."""
    id_ = await stored(store, message(body, queue=queue))
    assert await settle_one(store, await claim_one(store, queue), Dead(reason, error)) is WriteResult.WRITTEN
    return id_


async def three_letters(store: FullStore) -> None:
    """Three dead letters that differ in everything a filter can ask for."""
    await buried(store, b"a", queue="orders", reason="rejected", error="ValueError: 50% off")
    await buried(store, b"b", queue="orders", reason="expired")
    await buried(store, b"c", queue="refunds", reason="rejected", error="KeyError: 500 off")


class InspectConformance:
    """`peek`, `dead` and `stats`."""

    # ------------------------------------------------------------------------------------------ peek

    async def test_peeking_shows_everything_about_a_waiting_message(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        now = clock.now()
        id_ = await stored(
            store,
            timer(
                "reminder",
                b"\x00hello",
                headers={"trace": "żółć"},
                due=MINUTE,
                expires_in=HOUR,
                ordering_key="customer-7",
                priority=4,
            ),
        )
        clock.advance(SECOND)

        (pending,) = await store.peek()

        assert (pending.id, pending.queue, pending.timer_id) == (id_, QUEUE, "reminder")
        assert (pending.body, pending.headers) == (b"\x00hello", {"trace": "żółć"})
        assert (pending.ordering_key, pending.priority, pending.attempts) == ("customer-7", 4, 0)
        assert (pending.published_at, pending.due_at) == (now, now + MINUTE)
        assert pending.expires_at == now + HOUR

    async def test_peeking_shows_what_was_not_given_as_absent(self, store: FullStore) -> None:
        await store.publish(message())

        (pending,) = await store.peek()

        assert (pending.timer_id, pending.ordering_key, pending.expires_at) == (None, None, None)
        assert (pending.headers, pending.priority) == ({}, 0)

    async def test_peeking_takes_nothing(self, store: FullStore) -> None:
        await store.publish(message())
        assert bodies(await store.peek()) == bodies(await store.peek()) == [b"hello"]

        delivery = await claim_one(store)

        assert (delivery.body, delivery.deliveries) == (b"hello", 1)

    async def test_peeking_into_an_empty_store_shows_nothing(self, store: FullStore) -> None:
        assert await store.peek() == []
        assert await store.peek("orders", timer_id="reminder") == []

    async def test_peeking_goes_by_due_time_and_then_by_id_whatever_the_priority(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(b"last", due=HOUR, priority=9))
        await store.publish(message(b"second", due=MINUTE))
        await store.publish(message(b"third", due=clock.now() + MINUTE, priority=9))
        await store.publish(message(b"first", queue="refunds"))

        assert bodies(await store.peek()) == [b"first", b"second", b"third", b"last"]

    async def test_peeking_stops_at_the_limit(self, store: FullStore) -> None:
        await store.publish(message(b"later", due=HOUR))
        await store.publish_batch([message(b"%d" % number) for number in range(3)])

        assert bodies(await store.peek(limit=2)) == [b"0", b"1"]
        assert bodies(await store.peek(limit=4)) == [b"0", b"1", b"2", b"later"]

    async def test_peeking_stops_at_a_hundred_unless_told(self, store: FullStore) -> None:
        await store.publish_batch([message(b"%03d" % number) for number in range(101)])

        assert bodies(await store.peek()) == [b"%03d" % number for number in range(100)]

    async def test_peeking_by_queue_name_and_due_time(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish(timer("a", b"order a"))
        await store.publish(timer("b", b"order b", due=HOUR))
        await store.publish(timer("a", b"refund a", queue="refunds"))
        await store.publish(message(b"refund", queue="refunds", due=HOUR))

        assert bodies(await store.peek("orders")) == [b"order a", b"order b"]
        assert bodies(await store.peek("unused")) == []
        assert bodies(await store.peek(timer_id="a")) == [b"order a", b"refund a"]
        assert bodies(await store.peek("refunds", timer_id="a")) == [b"refund a"]
        assert bodies(await store.peek("refunds", timer_id="b")) == []
        soon = clock.now() + MINUTE
        assert bodies(await store.peek(due_before=soon)) == [b"order a", b"refund a"]
        assert bodies(await store.peek("orders", due_before=soon)) == [b"order a"]
        assert bodies(await store.peek("orders", timer_id="b", due_before=soon)) == []

    async def test_due_before_a_moment_leaves_out_what_is_due_at_it(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        moment = clock.now() + HOUR
        await store.publish(message(due=moment))

        assert await store.peek(due_before=moment) == []
        assert bodies(await store.peek(due_before=moment + MICROSECOND)) == [b"hello"]

    async def test_peeking_leaves_out_what_runs(self, store: FullStore, clock: ManualClock) -> None:
        running = await running_timer(store)
        assert await store.peek() == []
        assert await store.peek(timer_id="reminder") == []

        clock.advance(LEASE - MICROSECOND)
        assert await store.peek() == []
        clock.advance(MICROSECOND)
        assert [found.id for found in await store.peek()] == [running.id]

    async def test_peeking_shows_what_is_on_its_way_back_with_its_attempts(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        now = clock.now()
        await store.publish_batch([message(b"retried"), message(b"postponed"), message(b"released")])
        retried, postponed, released = await claim_all(store)
        await settle_one(store, retried, Retry(after=MINUTE))
        await settle_one(store, postponed, Postpone(after=HOUR))
        await settle_one(store, released, Release())

        assert [(found.body, found.attempts, found.due_at) for found in await store.peek()] == [
            (b"released", 0, now),
            (b"retried", 1, now + MINUTE),
            (b"postponed", 0, now + HOUR),
        ]

    async def test_peeking_leaves_out_superseded_messages_also_when_they_are_back(
        self, store: FullStore
    ) -> None:
        old = await running_timer(store)
        new = await stored(store, timer("reminder", b"new", on_conflict="replace"))
        await settle_one(store, old, Retry())

        assert [found.id for found in await store.peek()] == [new]
        assert await timer_owner(store) == [(new, b"new")]

    async def test_peeking_by_name_shows_only_the_owner(self, store: FullStore) -> None:
        own = await running_timer(store)
        new = await stored(store, timer("reminder", b"next"), own=own)
        await settle_one(store, own, Retry())

        assert [found.id for found in await store.peek(timer_id="reminder")] == [new]
        assert {found.id for found in await store.peek()} == {own.id, new}

    async def test_what_another_process_published_is_seen(self, store: FullStore, other: FullStore) -> None:
        await store.publish(message())

        assert bodies(await other.peek()) == [b"hello"]

    @needs("transactions")
    async def test_peeking_in_a_transaction_sees_what_it_has_not_committed(
        self, store: FullStore, harness: Harness
    ) -> None:
        await store.publish(timer("kept", b"kept"))
        await store.publish(timer("cancelled", b"cancelled"))

        async with harness.transaction() as transaction:
            await store.publish(timer("new", b"new"), transaction=transaction)
            await store.cancel(QUEUE, "cancelled", transaction=transaction)

            assert bodies(await store.peek(transaction=transaction)) == [b"kept", b"new"]
            assert bodies(await store.peek(timer_id="new", transaction=transaction)) == [b"new"]
            assert bodies(await store.peek()) == [b"kept", b"cancelled"]

    # ---------------------------------------------------------------------------------- dead letters

    @pytest.mark.parametrize(
        ("ran", "attempts", "last_attempt"),
        [
            pytest.param(True, 3, SECOND * 2 + LEASE, id="its handler ran"),
            pytest.param(False, 2, SECOND * 2, id="its handler did not run"),
        ],
    )
    async def test_a_dead_letter_tells_everything(
        self, store: FullStore, clock: ManualClock, ran: bool, attempts: int, last_attempt: timedelta
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
            ),
        )
        for _ in range(2):
            clock.advance(SECOND)
            await settle_one(store, await claim_one(store), Retry())
        await claim_one(store)
        clock.advance(LEASE)
        given_up = await claim_one(store)
        clock.advance(SECOND)

        assert (
            await settle_one(store, given_up, Dead("rejected", "ValueError: no", ran=ran))
            is WriteResult.WRITTEN
        )

        (letter,) = await store.dead(EVERYTHING)
        assert (letter.message_id, letter.queue, letter.timer_id) == (id_, QUEUE, "reminder")
        assert (letter.reason, letter.error) == ("rejected", "ValueError: no")
        assert (letter.body, letter.headers) == (b"\x00hello", {"trace": "żółć"})
        assert (letter.ordering_key, letter.priority) == ("customer-7", 4)
        assert (letter.attempts, letter.deliveries) == (attempts, 2)
        assert (letter.published_at, letter.first_attempt_at) == (start, start + SECOND)
        assert letter.last_attempt_at == start + last_attempt
        assert letter.died_at == start + SECOND * 3 + LEASE

    async def test_a_dead_letter_shows_what_was_not_given_as_absent(self, store: FullStore) -> None:
        await buried(store)

        (letter,) = await store.dead(EVERYTHING)

        assert (letter.error, letter.timer_id, letter.ordering_key) == (None, None, None)
        assert (letter.headers, letter.priority) == ({}, 0)

    async def test_a_message_that_was_never_run_has_no_attempts_to_tell_of(self, store: FullStore) -> None:
        await store.publish(message())

        await settle_one(store, await claim_one(store), Dead("expired", ran=False))

        (letter,) = await store.dead(EVERYTHING)
        assert (letter.attempts, letter.deliveries) == (0, 1)
        assert (letter.first_attempt_at, letter.last_attempt_at) == (None, None)

    async def test_a_dead_letter_is_not_delivered_and_not_pending(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await buried(store)
        clock.advance(HOUR)

        assert await claim_all(store) == []
        assert await store.peek() == []

    async def test_the_text_of_an_error_is_kept_as_it_is(self, store: FullStore) -> None:
        error = "Traceback…\n  żółć 🌙 \"quoted\" '%s' :name $1 {} \\x00\t"
        await buried(store, reason="żółć 🌙", error=error)

        (letter,) = await store.dead(EVERYTHING)

        assert (letter.reason, letter.error) == ("żółć 🌙", error)

    async def test_the_longest_error_and_reason_are_kept(self, store: FullStore) -> None:
        await buried(store, reason="🌙" * 255, error="🌙" * 8192)

        (letter,) = await store.dead(EVERYTHING)

        assert (letter.reason, letter.error) == ("🌙" * 255, "🌙" * 8192)

    async def test_the_same_timer_may_die_many_times(self, store: FullStore) -> None:
        ids = []
        for _ in range(3):
            ids.append(await stored(store, timer("reminder")))
            await settle_one(store, await claim_one(store), Dead("rejected"))

        letters = await store.dead(EVERYTHING)

        assert [letter.timer_id for letter in letters] == ["reminder"] * 3
        assert [letter.message_id for letter in letters] == ids[::-1]
        assert len({letter.id for letter in letters}) == 3

    async def test_dead_letters_come_newest_first_and_page_by_page(self, store: FullStore) -> None:
        for body in (b"a", b"b", b"c", b"d", b"e"):
            await buried(store, body)

        first = await store.dead(EVERYTHING, limit=2)
        second = await store.dead(EVERYTHING, limit=2, cursor=first[-1].id)
        third = await store.dead(EVERYTHING, limit=2, cursor=second[-1].id)
        end = await store.dead(EVERYTHING, limit=2, cursor=third[-1].id)

        assert [bodies(page) for page in (first, second, third, end)] == [
            [b"e", b"d"],
            [b"c", b"b"],
            [b"a"],
            [],
        ]

    async def test_a_letter_that_arrives_meanwhile_does_not_shift_the_pages(self, store: FullStore) -> None:
        await three_letters(store)
        first = await store.dead(EVERYTHING, limit=2)
        await buried(store, b"d")

        assert bodies(await store.dead(EVERYTHING, limit=2, cursor=first[-1].id)) == [b"a"]

    async def test_dead_letters_are_filtered_by_queue_and_reason(self, store: FullStore) -> None:
        await three_letters(store)

        assert bodies(await store.dead(DeadFilter(queue="orders"))) == [b"b", b"a"]
        assert bodies(await store.dead(DeadFilter(queue="unused"))) == []
        assert bodies(await store.dead(DeadFilter(reason="rejected"))) == [b"c", b"a"]
        assert bodies(await store.dead(DeadFilter(reason="reject"))) == []

    async def test_dead_letters_are_filtered_by_text_that_the_error_contains(self, store: FullStore) -> None:
        await three_letters(store)

        assert bodies(await store.dead(DeadFilter(error="off"))) == [b"c", b"a"]
        assert bodies(await store.dead(DeadFilter(error="ValueError: "))) == [b"a"]
        assert bodies(await store.dead(DeadFilter(error="TypeError"))) == []

    async def test_the_text_of_a_filter_is_no_pattern(self, store: FullStore) -> None:
        await three_letters(store)

        assert bodies(await store.dead(DeadFilter(error="50%"))) == [b"a"]
        assert bodies(await store.dead(DeadFilter(error="%"))) == [b"a"]
        assert bodies(await store.dead(DeadFilter(error="_"))) == []
        assert bodies(await store.dead(DeadFilter(error="\\"))) == []
        assert bodies(await store.dead(DeadFilter(error="*"))) == []

    async def test_dead_letters_are_filtered_by_age(self, store: FullStore, clock: ManualClock) -> None:
        await buried(store, b"old")
        clock.advance(HOUR)
        await buried(store, b"young")
        clock.advance(MINUTE)

        assert bodies(await store.dead(DeadFilter(older_than=timedelta(0)))) == [b"young", b"old"]
        assert bodies(await store.dead(DeadFilter(older_than=MINUTE - MICROSECOND))) == [b"young", b"old"]
        assert bodies(await store.dead(DeadFilter(older_than=MINUTE))) == [b"old"]
        assert bodies(await store.dead(DeadFilter(older_than=HOUR * 2))) == []

    async def test_dead_letters_are_filtered_by_their_own_ids(self, store: FullStore) -> None:
        await three_letters(store)
        newest, _, oldest = await store.dead(EVERYTHING)

        assert bodies(await store.dead(DeadFilter(ids=(oldest.id, newest.id)))) == [b"c", b"a"]
        assert bodies(await store.dead(DeadFilter(ids=(newest.id + 1000,)))) == []
        assert bodies(await store.dead(DeadFilter(ids=()))) == []

    async def test_every_condition_of_a_filter_must_apply(self, store: FullStore, clock: ManualClock) -> None:
        await three_letters(store)
        clock.advance(HOUR)
        ids = tuple(letter.id for letter in await store.dead(EVERYTHING))

        narrow = DeadFilter(queue="orders", reason="rejected", error="off", older_than=MINUTE, ids=ids)

        assert bodies(await store.dead(narrow)) == [b"a"]
        assert bodies(await store.dead(narrow, cursor=min(ids))) == []

    async def test_looking_at_dead_letters_removes_none(self, store: FullStore) -> None:
        await three_letters(store)

        first: list[DeadLetter] = await store.dead(EVERYTHING)

        assert await store.dead(EVERYTHING) == first

    # ----------------------------------------------------------------------------------------- stats

    async def test_an_empty_store_has_no_numbers(self, store: FullStore) -> None:
        assert await store.stats() == {}

    async def test_each_message_is_counted_once_where_it_stands(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await buried(store)
        await store.publish(timer("reminder", b"old"))
        await claim_one(store, lease=HOUR)
        await store.publish(timer("reminder", b"new", due=HOUR, on_conflict="replace"))
        await store.publish_batch([message(), message()])
        await claim_all(store, lease=HOUR)
        clock.advance(SECOND)
        await store.publish(message(b"oldest ready"))
        clock.advance(SECOND * 5)
        await store.publish(message())
        await store.publish(message(due=MINUTE))
        clock.advance(SECOND)

        assert await store.stats() == {
            QUEUE: QueueStats(
                ready=2, scheduled=2, running=2, superseded=1, dead=1, oldest_due_age=SECOND * 6
            )
        }

    async def test_numbers_are_for_each_queue(self, store: FullStore) -> None:
        await store.publish_batch(
            [message(queue="orders"), message(queue="orders"), message(queue="refunds")]
        )
        await store.publish(message(queue="later", due=HOUR))
        await buried(store, queue="graveyard")

        assert await store.stats() == {
            "orders": QueueStats(ready=2, oldest_due_age=timedelta(0)),
            "refunds": QueueStats(ready=1, oldest_due_age=timedelta(0)),
            "later": QueueStats(scheduled=1),
            "graveyard": QueueStats(dead=1),
        }

    async def test_an_expired_lease_counts_as_ready(self, store: FullStore, clock: ManualClock) -> None:
        await running_timer(store)
        clock.advance(LEASE - MICROSECOND)
        assert await store.stats() == {QUEUE: QueueStats(running=1)}

        clock.advance(MICROSECOND)

        assert await store.stats() == {QUEUE: QueueStats(ready=1, oldest_due_age=LEASE)}

    async def test_a_message_becomes_ready_the_moment_it_is_due(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message(due=MINUTE))
        clock.advance(MINUTE - MICROSECOND)
        assert await store.stats() == {QUEUE: QueueStats(scheduled=1)}

        clock.advance(MICROSECOND)

        assert await store.stats() == {QUEUE: QueueStats(ready=1, oldest_due_age=timedelta(0))}

    async def test_a_superseded_message_is_counted_apart_also_when_it_is_back(self, store: FullStore) -> None:
        old = await running_timer(store)
        await store.publish(timer("reminder", b"new", due=HOUR, on_conflict="replace"))
        assert await store.stats() == {QUEUE: QueueStats(scheduled=1, superseded=1)}

        await settle_one(store, old, Retry())

        assert await store.stats() == {QUEUE: QueueStats(scheduled=1, superseded=1)}

    async def test_a_queue_that_has_nothing_left_is_not_listed(self, store: FullStore) -> None:
        await store.publish(message())
        await settle_one(store, await claim_one(store), Done())

        assert await store.stats() == {}

    async def test_numbers_take_nothing(self, store: FullStore, clock: ManualClock) -> None:
        await expired_timer(store, clock)
        await store.stats()

        assert await claim_bodies(store) == [b"old"]
