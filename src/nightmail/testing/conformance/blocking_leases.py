"""Handlers in synchronous code hold and acknowledge their messages in transactions of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

import pytest

from nightmail.errors import CannotJoin, LeaseLost
from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, WriteResult
from nightmail.store import Blocking, FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.blocking import at_once
from nightmail.testing.conformance.build import (
    LEASE,
    QUEUE,
    claim_all,
    claim_bodies,
    claim_one,
    fresh_token,
    message,
    needs,
    settle_one,
)
from nightmail.testing.conformance.harness import Harness, RolledBack

Verb: TypeAlias = Callable[[FullStore, list[Delivery], Any], Coroutine[Any, Any, None]]

VERBS: Final[dict[str, Verb]] = {
    "hold": lambda store, own, given: store.hold(own, transaction=given),
    "ack": lambda store, own, given: store.ack(own, transaction=given),
}
either = pytest.mark.parametrize("verb", VERBS)


class BlockingLeasesConformance:
    """`Blocking`: a handler's `hold` and `ack` in the transaction of synchronous code."""

    @pytest.fixture(params=["open", "never opened"])
    def handlers_store(self, store: FullStore, harness: Harness, request: pytest.FixtureRequest) -> FullStore:
        """The store that the handler uses: it need not be open."""
        return store if request.param == "open" else harness.unopened()

    @needs("blocking")
    async def test_what_synchronous_code_acknowledges_is_gone_when_it_commits(
        self, store: FullStore, handlers_store: FullStore, harness: Harness
    ) -> None:
        await store.publish(message(b"handled"))
        own = await claim_one(store)

        with harness.blocking() as transaction:
            at_once(handlers_store.hold([own], transaction=transaction))
            at_once(handlers_store.ack([own], transaction=transaction))

        assert await store.stats() == {}
        assert await settle_one(store, own, Done()) is WriteResult.LOST

    @needs("blocking")
    async def test_what_synchronous_code_acknowledged_is_as_before_when_it_rolls_back(
        self, store: FullStore, handlers_store: FullStore, harness: Harness
    ) -> None:
        await store.publish(message(b"undone"))
        own = await claim_one(store)

        with pytest.raises(RolledBack), harness.blocking() as transaction:
            at_once(handlers_store.ack([own], transaction=transaction))
            raise RolledBack

        assert await claim_all(store) == []
        assert await settle_one(store, own, Done()) is WriteResult.WRITTEN

    @needs("blocking")
    async def test_holding_in_synchronous_code_changes_nothing(
        self, store: FullStore, handlers_store: FullStore, harness: Harness
    ) -> None:
        await store.publish(message(b"held"))
        own = await claim_one(store)

        with harness.blocking() as transaction:
            at_once(handlers_store.hold([own], transaction=transaction))

        assert await claim_all(store) == []
        assert await settle_one(store, own, Done()) is WriteResult.WRITTEN

    @needs("blocking")
    async def test_synchronous_code_acknowledges_on_a_thread_without_an_event_loop(
        self, store: FullStore, handlers_store: FullStore, harness: Harness
    ) -> None:
        await store.publish(message())
        own = await claim_one(store)

        def work() -> None:
            with harness.blocking() as transaction:
                at_once(handlers_store.hold([own], transaction=transaction))
                at_once(handlers_store.ack([own], transaction=transaction))

        await asyncio.to_thread(work)

        assert await store.stats() == {}

    @needs("blocking")
    @either
    async def test_synchronous_code_is_told_which_messages_it_has_lost(
        self, store: FullStore, handlers_store: FullStore, harness: Harness, clock: ManualClock, verb: str
    ) -> None:
        await store.publish(message(b"lost"))
        lost = await claim_one(store)
        clock.advance(LEASE)
        taken_over = await claim_one(store)
        await store.publish(message(b"kept"))
        kept = await claim_one(store)

        with harness.blocking() as transaction, pytest.raises(LeaseLost) as refused:
            at_once(VERBS[verb](handlers_store, [lost, kept], transaction))

        assert refused.value.ids == (lost.id,)
        assert await settle_one(store, taken_over, Done()) is WriteResult.WRITTEN
        assert await settle_one(store, kept, Done()) is WriteResult.WRITTEN

    @needs("blocking")
    async def test_a_lease_that_expired_and_was_not_taken_over_is_still_acknowledged_in_synchronous_code(
        self, store: FullStore, handlers_store: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await store.publish(message())
        own = await claim_one(store)
        clock.advance(LEASE * 2)

        with harness.blocking() as transaction:
            at_once(handlers_store.ack([own], transaction=transaction))

        assert await store.stats() == {}

    @needs("blocking", "concurrent_writers")
    @either
    async def test_no_worker_takes_over_what_an_open_transaction_of_synchronous_code_has_locked(
        self, store: FullStore, harness: Harness, clock: ManualClock, verb: str
    ) -> None:
        await store.publish(message(b"locked"))
        own = await claim_one(store)

        with harness.blocking() as transaction:
            at_once(VERBS[verb](store, [own], transaction))
            clock.advance(LEASE * 2)
            assert await claim_all(store) == []
            assert await store.extend([own], LEASE) == [WriteResult.BUSY]

        assert await claim_bodies(store) == ([b"locked"] if verb == "hold" else [])

    @needs("blocking")
    async def test_a_commit_of_synchronous_code_frees_the_ordering_key(
        self, store: FullStore, handlers_store: FullStore, harness: Harness
    ) -> None:
        for body in (b"first", b"second"):
            await store.publish(message(body, ordering_key="k"))
        own = await claim_one(store)
        assert await claim_all(store) == []

        with harness.blocking() as transaction:
            at_once(handlers_store.ack([own], transaction=transaction))

        assert await claim_bodies(store) == [b"second"]

    @needs("blocking")
    async def test_synchronous_code_acknowledges_several_messages_at_once(
        self, store: FullStore, handlers_store: FullStore, harness: Harness
    ) -> None:
        await store.publish_batch([message(b"%d" % number) for number in range(20)])
        own = await claim_all(store)

        with harness.blocking() as transaction:
            at_once(handlers_store.hold(own, transaction=transaction))
            at_once(handlers_store.ack(own, transaction=transaction))
            at_once(handlers_store.publish(message(b"next"), transaction=transaction))

        assert await claim_bodies(store) == [b"next"]

    @needs("blocking")
    async def test_synchronous_code_acknowledges_a_dead_letter(
        self, store: FullStore, handlers_store: FullStore, harness: Harness
    ) -> None:
        await store.publish(message(b"dead"))
        await settle_one(store, await claim_one(store), Dead("bad"))
        claimed = await store.claim_dead([QUEUE], limit=1, lease=LEASE, token=fresh_token())
        own = list(claimed.deliveries)

        with pytest.raises(RolledBack), harness.blocking() as transaction:
            at_once(handlers_store.ack(own, transaction=transaction))
            raise RolledBack
        with harness.blocking() as transaction:
            at_once(handlers_store.hold(own, transaction=transaction))
            at_once(handlers_store.ack(own, transaction=transaction))

        assert await store.stats() == {}

    @needs("blocking")
    @either
    async def test_a_synchronous_session_by_itself_is_no_transaction_of_a_handlers(
        self, store: FullStore, harness: Harness, verb: str
    ) -> None:
        await store.publish(message())
        own = await claim_one(store)

        with harness.blocking() as transaction, pytest.raises(CannotJoin):
            await VERBS[verb](store, [own], transaction.session)

        assert await settle_one(store, own, Done()) is WriteResult.WRITTEN

    @either
    async def test_what_is_no_transaction_of_synchronous_code_is_refused(
        self, store: FullStore, verb: str
    ) -> None:
        await store.publish(message())
        own = await claim_one(store)

        with pytest.raises(CannotJoin):
            await VERBS[verb](store, [own], Blocking(object()))

        assert await settle_one(store, own, Done()) is WriteResult.WRITTEN
