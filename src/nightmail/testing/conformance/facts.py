"""`facts`: for each clause that can hold a message back, one message that it holds back."""

from __future__ import annotations

from nightmail.outcome import Dead, Retry
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    LEASE,
    MINUTE,
    QUEUE,
    SECOND,
    bury,
    claim_all,
    claim_one,
    message,
    needs,
    running_timer,
    settle_one,
    stored,
    timer,
)
from nightmail.testing.conformance.harness import Harness
from nightmail.testing.conformance.workers import FIRST, token_of


class FactsConformance:
    """What is known about one message."""

    async def test_an_available_message_is_held_back_by_nothing(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(store, message())

        facts = await store.facts(id_)

        assert facts.message is not None
        assert (facts.message.id, facts.message.due_at, facts.now) == (id_, clock.now(), clock.now())
        assert (facts.letter, facts.worker_id, facts.stop_requested_by) == (None, None, None)
        assert (facts.key_held_by, facts.superseded_by, facts.locked) == (None, None, False)
        assert (facts.ahead, facts.pauses) == (0, ())

    async def test_a_message_that_never_was_is_unknown(self, store: FullStore) -> None:
        facts = await store.facts(4711)

        assert (facts.message, facts.letter, facts.delivered_at) == (None, None, None)

    async def test_a_message_that_is_due_later_says_when(self, store: FullStore) -> None:
        facts = await store.facts(await stored(store, message(due=HOUR)))

        assert facts.message is not None
        assert facts.message.due_at - facts.now == HOUR

    async def test_a_running_message_names_its_worker_and_a_waiting_one_does_not(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        id_ = await stored(store, message())
        await claim_one(store, token=token_of(FIRST, 1))

        running = await store.facts(id_)
        clock.advance(LEASE)
        expired = await store.facts(id_)

        assert running.message is not None
        assert (running.worker_id, running.message.running) == (FIRST, True)
        assert (running.message.claimed_at, running.message.lease_until) == (running.now, running.now + LEASE)
        assert expired.worker_id is None

    async def test_a_message_behind_another_of_its_key_names_the_one_that_holds_the_key(
        self, store: FullStore
    ) -> None:
        first = await stored(store, message(ordering_key="a"))
        behind = await stored(store, message(ordering_key="a"))
        other = await stored(store, message(ordering_key="b"))
        await settle_one(store, (await claim_all(store, limit=1))[0], Retry(MINUTE, "TimeoutError()"))

        facts = await store.facts(behind)

        assert facts.key_held_by is not None
        assert (facts.key_held_by.id, facts.key_held_by.attempts) == (first, 1)
        assert facts.key_held_by.due_at == facts.now + MINUTE
        assert facts.key_held_by.last_error == "TimeoutError()"
        assert facts.message is not None
        assert facts.message.last_error is None
        assert (await store.facts(first)).key_held_by is None
        assert (await store.facts(other)).key_held_by is None

    async def test_a_message_behind_one_that_has_not_started_names_that(self, store: FullStore) -> None:
        first = await stored(store, message(ordering_key="a"))
        behind = await stored(store, message(ordering_key="a"))

        facts = await store.facts(behind)

        assert facts.key_held_by is not None
        assert facts.key_held_by.id == first

    async def test_pauses_of_the_queue_and_of_the_key_are_told_and_no_others(self, store: FullStore) -> None:
        id_ = await stored(store, message(ordering_key="a"))
        await store.pause(QUEUE, by="ann", reason="provider down")
        await store.pause(QUEUE, ordering_key="a", by="bob")
        await store.pause(QUEUE, ordering_key="b", by="bob")
        await store.pause("refunds", by="ann")

        facts = await store.facts(id_)

        assert [(each.ordering_key, each.by, each.reason) for each in facts.pauses] == [
            (None, "ann", "provider down"),
            ("a", "bob", None),
        ]

    async def test_how_many_are_ahead_is_counted(self, store: FullStore, clock: ManualClock) -> None:
        await store.publish_batch([message(), message()])
        clock.advance(SECOND)
        id_ = await stored(store, message())
        await store.publish(message())

        assert (await store.facts(id_)).ahead == 2

    async def test_a_superseded_message_names_the_one_that_replaced_it(self, store: FullStore) -> None:
        old = await running_timer(store)
        new = await stored(store, timer("reminder", b"new", on_conflict="replace"))

        facts = await store.facts(old.id)

        assert facts.message is not None
        assert (facts.message.superseded, facts.superseded_by) == (True, new)

    async def test_a_dead_message_is_told_with_its_reason_and_without_its_body(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        letter = await bury(store, message(b"secret"), Dead("rejected", "ValueError: no"))

        facts = await store.facts(letter.message_id)

        assert facts.message is None
        assert facts.letter is not None
        assert (facts.letter.id, facts.letter.queue) == (letter.id, QUEUE)
        assert (facts.letter.reason, facts.letter.error) == ("rejected", "ValueError: no")
        assert (facts.letter.died_at, facts.letter.body) == (clock.now(), b"")

    @needs("transactions", "concurrent_writers")
    async def test_a_message_that_an_open_transaction_has_locked_is_locked(
        self, store: FullStore, harness: Harness
    ) -> None:
        id_ = await stored(store, timer("reminder"))

        async with harness.transaction() as transaction:
            assert await store.cancel(QUEUE, "reminder", transaction=transaction)
            locked = await store.facts(id_)

        assert (locked.locked, locked.message is not None) == (True, True)
