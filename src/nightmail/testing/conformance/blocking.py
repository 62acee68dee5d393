"""Synchronous code publishes in its own transaction: the verbs finish without ever suspending."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar, cast

import pytest

from nightmail.errors import CannotJoin, TimerExists
from nightmail.outcome import Done, WriteResult
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
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
    running_timer,
    settle_one,
    timer,
)
from nightmail.testing.conformance.harness import Harness, RolledBack
from nightmail.testing.conformance.wakeup import listening

Result = TypeVar("Result")
Verb: TypeAlias = Callable[[FullStore, Any], Awaitable[object]]

EVERY_VERB_FOR_SYNCHRONOUS_CODE: Final[dict[str, Verb]] = {
    "publish": lambda store, given: store.publish(message(b"refused"), transaction=given),
    "publish a timer": lambda store, given: store.publish(timer("refused"), transaction=given),
    "publish_batch": lambda store, given: store.publish_batch([message(b"refused")], transaction=given),
    "cancel": lambda store, given: store.cancel(QUEUE, "reminder", transaction=given),
    "reschedule": lambda store, given: store.reschedule(QUEUE, "reminder", HOUR, transaction=given),
}


class BlockingConformance:
    """`Blocking`: a publish, cancel or reschedule in the transaction of synchronous code."""

    @pytest.fixture(params=["open", "never opened"])
    def writer(self, store: FullStore, harness: Harness, request: pytest.FixtureRequest) -> FullStore:
        """The store that the synchronous code uses: it need not be open."""
        return store if request.param == "open" else harness.unopened()

    # ----------------------------------------------------------------------------------------- publish

    @needs("blocking")
    async def test_a_publish_of_synchronous_code_is_stored_when_its_transaction_commits(
        self, store: FullStore, writer: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        with harness.blocking() as transaction:
            id_ = at_once(
                writer.publish(
                    message(b"\x00hello", headers={"trace": "żółć"}, priority=4, ordering_key="k"),
                    transaction=transaction,
                )
            )

        delivery = await claim_one(store)
        assert (delivery.id, delivery.body, delivery.headers) == (id_, b"\x00hello", {"trace": "żółć"})
        assert (delivery.priority, delivery.ordering_key) == (4, "k")
        assert (delivery.due_at, delivery.published_at) == (clock.now(), clock.now())

    @needs("blocking")
    async def test_a_publish_of_synchronous_code_is_gone_when_its_transaction_rolls_back(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        with pytest.raises(RolledBack), harness.blocking() as transaction:
            at_once(writer.publish(message(), transaction=transaction))
            at_once(writer.publish(timer("reminder"), transaction=transaction))
            raise RolledBack

        assert await claim_all(store) == []
        assert await store.publish(timer("reminder")) is not None

    @needs("blocking")
    async def test_a_publish_of_synchronous_code_is_not_seen_before_it_commits(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        with harness.blocking() as transaction:
            at_once(writer.publish(message(), transaction=transaction))
            assert await store.peek() == []

        assert len(await store.peek()) == 1

    @needs("blocking")
    async def test_a_delay_counts_from_the_publish_of_synchronous_code(
        self, store: FullStore, writer: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        with harness.blocking() as transaction:
            clock.advance(SECOND * 5)
            at_once(writer.publish(message(b"delayed", due=MINUTE), transaction=transaction))
            at_once(writer.publish(message(b"dated", due=clock.now() + HOUR), transaction=transaction))

        clock.advance(MINUTE - MICROSECOND)
        assert await claim_all(store) == []
        clock.advance(MICROSECOND)
        assert await claim_bodies(store, lease=HOUR * 2) == [b"delayed"]
        clock.advance(HOUR - MINUTE)
        assert await claim_bodies(store) == [b"dated"]

    @needs("blocking")
    async def test_several_messages_are_published_in_one_transaction_of_synchronous_code(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        with harness.blocking() as transaction:
            ids = [
                at_once(writer.publish(message(body), transaction=transaction)) for body in (b"a", b"b", b"c")
            ]

        assert [(each.id, each.body) for each in await claim_all(store)] == list(
            zip(ids, (b"a", b"b", b"c"), strict=True)
        )

    @needs("blocking")
    async def test_synchronous_code_publishes_on_a_thread_without_an_event_loop(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        def work() -> int | None:
            with harness.blocking() as transaction:
                return at_once(writer.publish(message(b"from a thread"), transaction=transaction))

        id_ = await asyncio.to_thread(work)

        assert [(each.id, each.body) for each in await claim_all(store)] == [(id_, b"from a thread")]

    @needs("blocking")
    async def test_synchronous_code_may_use_one_transaction_after_another(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        for body in (b"a", b"b", b"c"):
            with harness.blocking() as transaction:
                at_once(writer.publish(message(body), transaction=transaction))

        assert await claim_bodies(store) == [b"a", b"b", b"c"]

    @needs("blocking", "pushes_wakeups")
    async def test_a_publish_of_synchronous_code_rings_when_it_commits(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        async with listening(store, other, QUEUE) as ear:
            with harness.blocking() as transaction:
                at_once(other.publish(message(b"committed"), transaction=transaction))
                ear.forget()

            assert await ear.rang()
            assert await claim_bodies(store) == [b"committed"]

    # ------------------------------------------------------------------------------------------ timers

    @needs("blocking")
    async def test_a_timer_whose_name_is_taken_is_not_stored_by_synchronous_code(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        await store.publish(timer("reminder", b"first"))

        with harness.blocking() as transaction:
            assert at_once(writer.publish(timer("reminder", b"second"), transaction=transaction)) is None

        assert await claim_bodies(store) == [b"first"]

    @needs("blocking")
    async def test_synchronous_code_is_told_that_a_timer_exists_and_goes_on(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        await store.publish(timer("reminder", b"first"))

        with harness.blocking() as transaction:
            with pytest.raises(TimerExists):
                at_once(
                    writer.publish(timer("reminder", b"second", on_conflict="raise"), transaction=transaction)
                )
            at_once(writer.publish(message(b"and yet"), transaction=transaction))

        assert sorted(await claim_bodies(store)) == [b"and yet", b"first"]

    @needs("blocking")
    async def test_synchronous_code_replaces_a_waiting_timer_in_its_place(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        first = await store.publish(timer("reminder", b"first"))

        with harness.blocking() as transaction:
            id_ = at_once(
                writer.publish(timer("reminder", b"second", on_conflict="replace"), transaction=transaction)
            )

        assert id_ == first
        assert await claim_bodies(store) == [b"second"]

    @needs("blocking")
    async def test_synchronous_code_supersedes_a_running_timer(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        running = await running_timer(store)

        with harness.blocking() as transaction:
            id_ = at_once(
                writer.publish(timer("reminder", b"new", on_conflict="replace"), transaction=transaction)
            )

        assert id_ not in (None, running.id)
        assert await claim_bodies(store) == [b"new"]
        assert await settle_one(store, running, Done()) is WriteResult.WRITTEN

    @needs("blocking")
    @pytest.mark.parametrize(("policy", "kept"), [("earliest", b"sooner"), ("latest", b"waiting")])
    async def test_synchronous_code_compares_due_times(
        self, store: FullStore, writer: FullStore, harness: Harness, policy: Any, kept: bytes
    ) -> None:
        await store.publish(timer("reminder", b"waiting", due=HOUR))

        with harness.blocking() as transaction:
            at_once(
                writer.publish(
                    timer("reminder", b"sooner", due=MINUTE, on_conflict=policy), transaction=transaction
                )
            )

        assert bodies(await store.peek()) == [kept]

    @needs("blocking")
    async def test_a_dedup_window_opened_by_synchronous_code_holds(
        self, store: FullStore, writer: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        with harness.blocking() as transaction:
            at_once(writer.publish(timer("reminder", dedup_for=MINUTE), transaction=transaction))
        await settle_one(store, await claim_one(store), Done())

        with harness.blocking() as transaction:
            assert at_once(writer.publish(timer("reminder"), transaction=transaction)) is None
        clock.advance(MINUTE)
        with harness.blocking() as transaction:
            assert at_once(writer.publish(timer("reminder"), transaction=transaction)) is not None

    # ------------------------------------------------------------------------------------------- batch

    @needs("blocking")
    async def test_a_batch_of_synchronous_code_is_stored_with_its_ids_in_order(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        messages = [message(b"%03d" % number) for number in range(100)]

        with harness.blocking() as transaction:
            ids = at_once(writer.publish_batch(messages, transaction=transaction))

        assert [(each.id, each.body) for each in await claim_all(store)] == list(
            zip(ids, bodies(messages), strict=True)
        )

    @needs("blocking")
    async def test_a_batch_of_synchronous_code_is_gone_when_its_transaction_rolls_back(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        with pytest.raises(RolledBack), harness.blocking() as transaction:
            at_once(writer.publish_batch([message(b"a"), message(b"b")], transaction=transaction))
            raise RolledBack

        assert await store.stats() == {}

    @needs("blocking")
    async def test_an_empty_batch_of_synchronous_code_stores_nothing(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        with harness.blocking() as transaction:
            assert at_once(writer.publish_batch([], transaction=transaction)) == []

        assert await store.stats() == {}

    @needs("blocking")
    async def test_a_batch_of_synchronous_code_with_a_timer_id_is_refused(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        with harness.blocking() as transaction, pytest.raises(ValueError, match="timer"):
            at_once(writer.publish_batch([message(), timer("reminder")], transaction=transaction))

        assert await store.stats() == {}

    # --------------------------------------------------------------------------- cancel and reschedule

    @needs("blocking")
    async def test_synchronous_code_cancels_a_waiting_timer(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        await store.publish(timer("reminder"))

        with harness.blocking() as transaction:
            assert at_once(writer.cancel(QUEUE, "reminder", transaction=transaction)) is True
            assert at_once(writer.cancel(QUEUE, "reminder", transaction=transaction)) is False

        assert await claim_all(store) == []

    @needs("blocking")
    async def test_a_timer_that_synchronous_code_cancelled_is_back_after_a_rollback(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        await store.publish(timer("reminder", b"still here", dedup_for=HOUR))

        with pytest.raises(RolledBack), harness.blocking() as transaction:
            at_once(writer.cancel(QUEUE, "reminder", transaction=transaction))
            raise RolledBack

        await settle_one(store, await claim_one(store), Done())
        assert await store.publish(timer("reminder")) is None

    @needs("blocking")
    async def test_synchronous_code_leaves_a_running_timer_alone(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        running = await running_timer(store)

        with harness.blocking() as transaction:
            assert at_once(writer.cancel(QUEUE, "reminder", transaction=transaction)) is False
            assert at_once(writer.reschedule(QUEUE, "reminder", HOUR, transaction=transaction)) is False

        assert await settle_one(store, running, Done()) is WriteResult.WRITTEN

    @needs("blocking")
    async def test_synchronous_code_moves_a_waiting_timer(
        self, store: FullStore, writer: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", due=HOUR))

        with harness.blocking() as transaction:
            assert at_once(writer.reschedule(QUEUE, "reminder", MINUTE, transaction=transaction)) is True

        (found,) = await store.peek(QUEUE)
        assert found.due_at == clock.now() + MINUTE

    @needs("blocking")
    async def test_a_timer_that_synchronous_code_moved_is_where_it_was_after_a_rollback(
        self, store: FullStore, writer: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", due=HOUR))

        with pytest.raises(RolledBack), harness.blocking() as transaction:
            at_once(writer.reschedule(QUEUE, "reminder", MINUTE, transaction=transaction))
            raise RolledBack

        (found,) = await store.peek(QUEUE)
        assert found.due_at == clock.now() + HOUR

    @needs("blocking")
    async def test_verbs_of_synchronous_code_see_one_another_in_one_transaction(
        self, store: FullStore, writer: FullStore, harness: Harness
    ) -> None:
        with harness.blocking() as transaction:
            at_once(writer.publish(timer("reminder", b"first"), transaction=transaction))
            assert at_once(writer.publish(timer("reminder", b"second"), transaction=transaction)) is None
            assert at_once(writer.cancel(QUEUE, "reminder", transaction=transaction)) is True
            at_once(writer.publish(timer("reminder", b"third"), transaction=transaction))

        assert await claim_bodies(store) == [b"third"]

    # --------------------------------------------------------------------------------- what is refused

    @needs("blocking")
    @pytest.mark.parametrize("verb", EVERY_VERB_FOR_SYNCHRONOUS_CODE)
    async def test_a_synchronous_session_by_itself_is_refused_with_a_word_on_what_to_use(
        self, store: FullStore, harness: Harness, verb: str
    ) -> None:
        await store.publish(timer("reminder", b"first"))

        with harness.blocking() as transaction, pytest.raises(CannotJoin, match="SyncPublisher"):
            await EVERY_VERB_FOR_SYNCHRONOUS_CODE[verb](store, transaction.session)

        assert bodies(await store.peek()) == [b"first"]


def at_once(verb: Awaitable[Result]) -> Result:
    """The verb's result, driven as synchronous code does it: one step, in which it must finish."""
    coroutine = cast(Coroutine[Any, Any, Result], verb)
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(Result, ended.value)
    coroutine.close()
    pytest.fail("the verb waits for something, and synchronous code cannot wait")
