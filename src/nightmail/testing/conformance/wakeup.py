"""Bells: a listener of a queue is rung when something in it may be due soon.

No test sleeps to see that a ring does not come. Over one connection rings arrive in the order in which they were sent,
so a test sends one more, to a queue of its own: once that has arrived, nothing older is still on its way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final

import pytest

from nightmail.bell import Bell
from nightmail.errors import TimerExists
from nightmail.outcome import Dead, Done, Outcome, Postpone, Release, Retry
from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    HOUR,
    MINUTE,
    QUEUE,
    SECOND,
    claim_all,
    claim_bodies,
    claim_one,
    message,
    needs,
    settle_one,
    timer,
)
from nightmail.testing.conformance.harness import Harness, RolledBack

PATIENCE: Final = 5.0
"""Real seconds within which a ring arrives. Only a failing test takes that long."""

_LAST_QUEUES: Final = ("rung last", "rung last 3", "rung last 4")
"""On a Redis Cluster of three masters each of these is on another, and so heard over another connection."""


class WakeupConformance:
    """Wake-ups: what rings, what does not, and who hears it."""

    # ------------------------------------------------------------------------------------ who is rung

    async def test_a_publish_rings_a_bell_of_the_same_store(
        self, store: FullStore, sender: FullStore
    ) -> None:
        async with listening(store, sender, QUEUE) as ear:
            await store.publish(message())

            assert await ear.rang()

    @needs("pushes_wakeups")
    async def test_a_publish_rings_a_bell_of_another_process(
        self, store: FullStore, other: FullStore
    ) -> None:
        async with listening(store, other, QUEUE) as ear:
            await other.publish(message(b"across"))

            assert await ear.rang()
            assert await claim_bodies(store) == [b"across"]

    @needs("pushes_wakeups", "transactions")
    async def test_a_publish_in_a_transaction_rings_when_that_commits(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        async with listening(store, other, QUEUE) as ear:
            async with harness.transaction() as transaction:
                await other.publish(message(b"committed"), transaction=transaction)
                # A ring before the commit would find nothing.
                ear.forget()

            assert await ear.rang()
            assert await claim_bodies(store) == [b"committed"]

    async def test_a_batch_rings_once_it_is_stored(self, store: FullStore, sender: FullStore) -> None:
        async with listening(store, sender, QUEUE) as ear:
            await sender.publish_batch([message(b"a"), message(b"b")])

            assert await ear.rang()
            assert await claim_bodies(store) == [b"a", b"b"]

    async def test_a_bell_of_several_queues_rings_for_each_of_them(
        self, store: FullStore, sender: FullStore
    ) -> None:
        async with listening(store, sender, "orders", "refunds") as ear:
            for queue in ("orders", "refunds", "orders"):
                await sender.publish(message(queue=queue))
                assert await ear.rang()
                await ear.catch_up()
                ear.forget()

    async def test_every_bell_of_a_queue_rings(self, store: FullStore, sender: FullStore) -> None:
        async with listening(store, sender, QUEUE) as first, listening(store, sender, QUEUE) as second:
            await sender.publish(message())

            assert await first.rang()
            assert await second.rang()

    async def test_a_bell_of_another_queue_is_not_rung(self, store: FullStore, sender: FullStore) -> None:
        async with listening(store, sender, "refunds") as ear:
            await sender.publish(message(queue="orders"))

            assert await ear.stayed_silent()

    async def test_a_bell_whose_block_was_left_rings_no_more(
        self, store: FullStore, sender: FullStore
    ) -> None:
        async with listening(store, sender, QUEUE) as ear:
            with store.listen([QUEUE]) as left:
                pass
            left.clear()
            await sender.publish(message())

            assert await ear.rang()
            await ear.catch_up()
            assert not await left.wait(0)

    async def test_a_bell_may_be_hung_again(self, store: FullStore, sender: FullStore) -> None:
        async with listening(store, sender, QUEUE) as ear:
            pass
        async with listening(store, sender, QUEUE) as ear:
            await sender.publish(message())

            assert await ear.rang()

    # ---------------------------------------------------------------------------------- remembering

    async def test_a_ring_between_clearing_and_waiting_is_remembered(
        self, store: FullStore, sender: FullStore
    ) -> None:
        async with listening(store, sender, QUEUE) as ear:
            ear.forget()
            await sender.publish(message())
            await ear.catch_up()

            assert await ear.rang_already()

    async def test_a_cleared_bell_rings_again_for_the_next_message(
        self, store: FullStore, sender: FullStore
    ) -> None:
        async with listening(store, sender, QUEUE) as ear:
            for _ in range(3):
                await sender.publish(message())
                assert await ear.rang()
                await ear.catch_up()
                ear.forget()

    # ------------------------------------------------------------------------------------- publishing

    async def test_a_message_due_within_the_minute_rings(self, store: FullStore, sender: FullStore) -> None:
        async with listening(store, sender, QUEUE) as ear:
            await sender.publish(message(due=MINUTE - SECOND))

            assert await ear.rang()

    async def test_a_message_due_beyond_the_minute_does_not_ring(
        self, store: FullStore, sender: FullStore, clock: ManualClock
    ) -> None:
        async with listening(store, sender, QUEUE) as ear:
            await sender.publish(message(due=MINUTE + SECOND))
            await sender.publish(message(due=clock.now() + HOUR))
            await sender.publish_batch([message(due=HOUR), message(due=HOUR)])

            assert await ear.stayed_silent()

    async def test_a_batch_rings_when_one_of_its_messages_is_due_soon(
        self, store: FullStore, sender: FullStore
    ) -> None:
        async with listening(store, sender, "far", "near") as ear:
            await sender.publish_batch([message(due=HOUR, queue="far"), message(queue="near")])

            assert await ear.rang()

    async def test_a_publish_that_stored_nothing_does_not_ring(
        self, store: FullStore, sender: FullStore
    ) -> None:
        await sender.publish(timer("reminder", due=HOUR))
        async with listening(store, sender, QUEUE) as ear:
            assert await sender.publish(timer("reminder")) is None
            assert await sender.publish(timer("reminder", due=SECOND, on_conflict="latest")) is None
            with pytest.raises(TimerExists):
                await sender.publish(timer("reminder", on_conflict="raise"))

            assert await ear.stayed_silent()

    async def test_a_message_replaced_by_one_that_is_due_sooner_rings(
        self, store: FullStore, sender: FullStore
    ) -> None:
        await sender.publish(timer("reminder", due=HOUR))
        async with listening(store, sender, QUEUE) as ear:
            await sender.publish(timer("reminder", on_conflict="replace"))

            assert await ear.rang()

    @needs("transactions")
    async def test_a_publish_that_was_rolled_back_leaves_nothing_to_find(
        self, store: FullStore, sender: FullStore, harness: Harness
    ) -> None:
        async with listening(store, sender, QUEUE) as ear:
            with pytest.raises(RolledBack):
                async with harness.transaction() as transaction:
                    await sender.publish(message(), transaction=transaction)
                    raise RolledBack

            await ear.catch_up()
            assert await claim_all(store) == []

    # --------------------------------------------------------------------------- settling and moving

    @pytest.mark.parametrize(
        "outcome",
        [
            pytest.param(Retry(), id="retry now"),
            pytest.param(Retry(SECOND * 10), id="retry soon"),
            pytest.param(Postpone(SECOND * 10), id="postpone"),
            pytest.param(Release(), id="release"),
        ],
    )
    async def test_a_message_that_will_soon_be_available_again_rings(
        self, store: FullStore, sender: FullStore, outcome: Outcome
    ) -> None:
        await sender.publish(message())
        delivery = await claim_one(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, delivery, outcome)

            assert await ear.rang()

    @pytest.mark.parametrize(
        "outcome", [pytest.param(Retry(HOUR), id="retry"), pytest.param(Postpone(HOUR), id="postpone")]
    )
    async def test_a_message_put_off_beyond_the_minute_does_not_ring(
        self, store: FullStore, sender: FullStore, outcome: Outcome
    ) -> None:
        await sender.publish(message())
        delivery = await claim_one(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, delivery, outcome)

            assert await ear.stayed_silent()

    async def test_a_late_settlement_does_not_ring(
        self, store: FullStore, sender: FullStore, clock: ManualClock
    ) -> None:
        await sender.publish(message())
        late = await claim_one(sender, lease=SECOND)
        clock.advance(SECOND)
        await claim_one(sender, lease=HOUR)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, late, Retry())

            assert await ear.stayed_silent()

    async def test_a_timer_moved_into_the_next_minute_rings(
        self, store: FullStore, sender: FullStore
    ) -> None:
        await sender.publish(timer("reminder", due=HOUR))
        async with listening(store, sender, QUEUE) as ear:
            assert await sender.reschedule(QUEUE, "reminder", SECOND * 10)

            assert await ear.rang()

    async def test_a_timer_moved_beyond_the_minute_does_not_ring(
        self, store: FullStore, sender: FullStore
    ) -> None:
        await sender.publish(timer("reminder", due=HOUR))
        async with listening(store, sender, QUEUE) as ear:
            assert await sender.reschedule(QUEUE, "reminder", HOUR * 2)

            assert await ear.stayed_silent()

    @pytest.mark.parametrize(
        "outcome", [pytest.param(Done(), id="done"), pytest.param(Dead("rejected"), id="dead")]
    )
    async def test_the_end_of_a_message_rings_for_the_next_one_of_its_key(
        self, store: FullStore, sender: FullStore, outcome: Outcome
    ) -> None:
        await sender.publish_batch([message(b"head", ordering_key="k"), message(b"next", ordering_key="k")])
        head = await claim_one(sender)
        async with listening(store, sender, QUEUE) as ear:
            await settle_one(sender, head, outcome)

            assert await ear.rang()
            assert await claim_bodies(store) == [b"next"]

    @needs("pushes_wakeups", "transactions")
    async def test_a_message_acked_in_a_transaction_rings_for_the_next_one_of_its_key_when_that_commits(
        self, store: FullStore, other: FullStore, harness: Harness
    ) -> None:
        await other.publish_batch([message(b"head", ordering_key="k"), message(b"next", ordering_key="k")])
        head = await claim_one(other)
        async with listening(store, other, QUEUE) as ear:
            async with harness.transaction() as transaction:
                await other.ack([head], transaction=transaction)
                ear.forget()

            assert await ear.rang()
            assert await claim_bodies(store) == [b"next"]

    async def test_cancelling_the_head_of_a_key_rings_for_the_next_one(
        self, store: FullStore, sender: FullStore
    ) -> None:
        await sender.publish(timer("head", b"head", ordering_key="k"))
        await sender.publish(message(b"next", ordering_key="k"))
        await settle_one(sender, await claim_one(sender), Retry(HOUR))
        async with listening(store, sender, QUEUE) as ear:
            assert await sender.cancel(QUEUE, "head")

            assert await ear.rang()
            assert await claim_bodies(store) == [b"next"]


class _Ear:
    """A bell under test, and others that show when nothing is still on its way to it."""

    def __init__(self, bell: Bell, last: dict[str, Bell], sender: FullStore) -> None:
        self._bell = bell
        self._last = last
        self._sender = sender

    async def rang(self) -> bool:
        """Whether it rings, now or soon."""
        return await self._bell.wait(PATIENCE)

    async def rang_already(self) -> bool:
        """Whether it has rung since it was last cleared."""
        return await self._bell.wait(0)

    async def stayed_silent(self) -> bool:
        """Whether nothing sent so far has rung it."""
        await self.catch_up()
        return not await self.rang_already()

    async def catch_up(self) -> None:
        """Wait until every ring that was sent has arrived.

        Twice: the first wait may end with the ring for a new connection, which says nothing about the rings
        after it.
        """
        for _ in range(2):
            for queue, bell in self._last.items():
                bell.clear()
                await self._sender.publish(message(queue=queue))
                assert await bell.wait(PATIENCE), "the bell of the queue that was just published to is silent"

    def forget(self) -> None:
        """Forget earlier rings."""
        self._bell.clear()


@asynccontextmanager
async def listening(store: FullStore, sender: FullStore, *queues: str) -> AsyncIterator[_Ear]:
    """A bell of `store` for these queues that hears `sender`, with no earlier ring still on its way."""
    with ExitStack() as bells:
        bell = bells.enter_context(store.listen(queues))
        last = {queue: bells.enter_context(store.listen([queue])) for queue in _LAST_QUEUES}
        ear = _Ear(bell, last, sender)
        await ear.catch_up()
        ear.forget()
        yield ear
