"""What a sweep deletes: the delivered history, old dead letters, ended dedup windows; and what it never touches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from nightmail.outcome import Dead, Done, Postpone, Retry, WriteResult
from nightmail.records import DeadFilter, QueueStats, Swept
from nightmail.store import FullStore, Settlement
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import (
    AT_ONCE,
    EVERYTHING,
    HOUR,
    LEASE,
    MICROSECOND,
    MINUTE,
    QUEUE,
    SECOND,
    bodies,
    bury,
    claim_all,
    claim_bodies,
    claim_letter,
    claim_letters,
    claim_one,
    expired_timer,
    message,
    needs,
    settle_one,
    timer,
)
from nightmail.testing.conformance.harness import Harness, RolledBack


class SweepConformance:
    """Sweeping: what is over and long ago goes, and nothing else."""

    @pytest_asyncio.fixture
    async def keeper(self, harness: Harness, store: FullStore) -> AsyncIterator[FullStore]:
        """A store over the same data that keeps delivered messages."""
        keeper = await harness.open(keep_delivered=True)
        try:
            yield keeper
        finally:
            await keeper.close()

    # ------------------------------------------------------------------------------- nothing to sweep

    async def test_sweeping_an_empty_store_deletes_nothing(self, store: FullStore) -> None:
        assert await store.sweep(older_than=AT_ONCE, limit=100) == Swept()

    async def test_messages_are_never_swept_however_old_they_are(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("superseded", b"superseded"))
        await claim_one(store, lease=HOUR * 48)
        await store.publish(timer("superseded", b"newer", on_conflict="replace", due=HOUR * 48))
        await store.publish(message(b"running"))
        await claim_one(store, lease=HOUR * 48)
        await store.publish(message(b"expired", expires_in=MINUTE))
        await store.publish(message(b"retried"))
        for delivery in await claim_all(store):
            await settle_one(store, delivery, Retry() if delivery.body == b"retried" else Postpone(MINUTE))
        before = await store.stats()
        clock.advance(HOUR * 24)

        assert await store.sweep(older_than=AT_ONCE, limit=100) == Swept()

        assert before == {
            QUEUE: QueueStats(ready=1, scheduled=2, running=1, superseded=1, oldest_due_age=AT_ONCE)
        }
        assert await store.stats() == {
            QUEUE: QueueStats(ready=2, scheduled=1, running=1, superseded=1, oldest_due_age=HOUR * 24)
        }

    async def test_a_message_whose_lease_has_expired_is_not_swept(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        late = await expired_timer(store, clock)
        clock.advance(HOUR * 24)

        assert await store.sweep(older_than=AT_ONCE, limit=100) == Swept()

        assert await settle_one(store, late, Done()) is WriteResult.WRITTEN

    # ------------------------------------------------------------------------------ what was delivered

    async def test_what_was_delivered_leaves_nothing_to_sweep_unless_it_is_kept(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await deliver(store, 3)
        clock.advance(HOUR)

        assert await store.sweep(older_than=AT_ONCE, limit=100) == Swept()

    async def test_what_was_delivered_and_kept_is_swept(
        self, store: FullStore, keeper: FullStore, clock: ManualClock
    ) -> None:
        await deliver(keeper, 3)
        clock.advance(HOUR)

        assert await store.sweep(older_than=MINUTE, limit=100) == Swept(delivered=3)
        assert await store.sweep(older_than=MINUTE, limit=100) == Swept()

    async def test_what_was_delivered_is_swept_once_it_is_older_than_that_to_the_microsecond(
        self, store: FullStore, keeper: FullStore, clock: ManualClock
    ) -> None:
        await keeper.publish(message())
        clock.advance(HOUR)
        await settle_one(keeper, await claim_one(keeper), Done())

        clock.advance(MINUTE)
        assert await store.sweep(older_than=MINUTE, limit=100) == Swept()
        clock.advance(MICROSECOND)
        assert await store.sweep(older_than=MINUTE, limit=100) == Swept(delivered=1)

    async def test_a_sweep_takes_no_more_of_what_was_delivered_than_the_limit(
        self, store: FullStore, keeper: FullStore, clock: ManualClock
    ) -> None:
        await deliver(keeper, 2, queue="orders")
        await deliver(keeper, 3, queue="refunds")
        clock.advance(HOUR)

        swept = [await store.sweep(older_than=MINUTE, limit=2) for _ in range(4)]

        assert swept == [Swept(delivered=2), Swept(delivered=2), Swept(delivered=1), Swept()]

    async def test_only_what_was_done_is_in_the_history(
        self, store: FullStore, keeper: FullStore, clock: ManualClock
    ) -> None:
        await keeper.publish_batch([message(b"done"), message(b"retried"), message(b"released")])
        done, retried, released = await claim_all(keeper)
        await keeper.settle(
            [Settlement(done, Done()), Settlement(retried, Retry()), Settlement(released, Retry())]
        )
        await keeper.publish(timer("cancelled", due=HOUR))
        await keeper.cancel(QUEUE, "cancelled")
        clock.advance(HOUR)

        assert await store.sweep(older_than=MINUTE, limit=100) == Swept(delivered=1)

    @needs("transactions")
    async def test_letters_that_were_handled_are_not_in_the_history(
        self, keeper: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        for body in (b"settled", b"acked"):
            await bury(keeper, message(body))
        settled, acked = await claim_letters(keeper)

        assert await settle_one(keeper, settled, Done()) is WriteResult.WRITTEN
        async with harness.transaction() as transaction:
            await keeper.ack([acked], transaction=transaction)

        clock.advance(HOUR)
        assert await keeper.dead(EVERYTHING) == []
        assert await keeper.sweep(older_than=MINUTE, limit=10) == Swept()

    async def test_a_redriven_message_that_is_done_joins_the_history(
        self, store: FullStore, keeper: FullStore, clock: ManualClock
    ) -> None:
        await keeper.redrive([await bury(keeper, message())])
        await settle_one(keeper, await claim_one(keeper), Done())
        clock.advance(HOUR)

        assert await store.sweep(older_than=MINUTE, limit=100) == Swept(delivered=1)

    @needs("transactions")
    async def test_what_was_acked_is_in_the_history_once_its_transaction_commits(
        self, store: FullStore, keeper: FullStore, harness: Harness, clock: ManualClock
    ) -> None:
        await keeper.publish_batch([message(b"committed"), message(b"rolled back")])
        committed, rolled_back = await claim_all(keeper)

        async with harness.transaction() as transaction:
            await keeper.ack([committed], transaction=transaction)
        with pytest.raises(RolledBack):
            async with harness.transaction() as transaction:
                await keeper.ack([rolled_back], transaction=transaction)
                raise RolledBack
        clock.advance(HOUR)

        assert await store.sweep(older_than=MINUTE, limit=100) == Swept(delivered=1)

    # ------------------------------------------------------------------------------------ dead letters

    async def test_a_letter_is_swept_once_it_is_older_than_that_to_the_microsecond(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(message())
        clock.advance(HOUR)
        await settle_one(store, await claim_one(store), Dead("rejected"))

        clock.advance(MINUTE)
        assert await store.sweep(older_than=MINUTE, limit=100) == Swept()
        clock.advance(MICROSECOND)
        assert await store.sweep(older_than=MINUTE, limit=100) == Swept(dead=1)
        assert await store.dead(EVERYTHING) == []
        assert await store.stats() == {}

    async def test_a_sweep_takes_no_more_letters_than_the_limit(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for queue in ("orders", "refunds", "orders", "refunds", "orders"):
            await bury(store, message(queue=queue))
            clock.advance(SECOND)
        clock.advance(HOUR)

        swept = [await store.sweep(older_than=MINUTE, limit=2) for _ in range(4)]

        assert swept == [Swept(dead=2), Swept(dead=2), Swept(dead=1), Swept()]

    async def test_younger_letters_stay(self, store: FullStore, clock: ManualClock) -> None:
        await bury(store, message(b"old"))
        clock.advance(HOUR)
        await bury(store, message(b"young"))

        assert await store.sweep(older_than=MINUTE, limit=100) == Swept(dead=1)

        assert bodies(await store.dead(EVERYTHING)) == [b"young"]

    async def test_a_held_letter_stays_and_does_not_keep_others_from_being_swept(
        self, store: FullStore, other: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message(b"held"))
        held = await claim_letter(other, lease=HOUR * 2)
        clock.advance(SECOND)
        await bury(store, message(b"free"))
        clock.advance(HOUR)

        assert await store.sweep(older_than=MINUTE, limit=1) == Swept(dead=1)
        assert await store.sweep(older_than=MINUTE, limit=1) == Swept()

        assert bodies(await store.dead(EVERYTHING)) == [b"held"]
        assert await settle_one(other, held, Done()) is WriteResult.WRITTEN

    async def test_a_letter_that_was_given_up_or_whose_lease_has_expired_is_swept(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message(b"given up"))
        await settle_one(store, await claim_letter(store), Dead("given up"))
        await bury(store, message(b"expired"))
        late = await claim_letter(store, lease=LEASE)
        clock.advance(HOUR)

        assert await store.sweep(older_than=MINUTE, limit=100) == Swept(dead=2)

        assert await settle_one(store, late, Done()) is WriteResult.LOST

    async def test_a_letter_that_was_put_off_is_as_old_as_its_death(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await bury(store, message())
        await settle_one(store, await claim_letter(store), Retry(HOUR * 2))
        clock.advance(HOUR)

        assert await store.sweep(older_than=MINUTE, limit=100) == Swept(dead=1)

    # ----------------------------------------------------------------------------------- dedup windows

    async def test_a_dedup_window_is_swept_once_it_has_ended(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", dedup_for=MINUTE))

        clock.advance(MINUTE - MICROSECOND)
        assert await store.sweep(older_than=AT_ONCE, limit=100) == Swept()
        clock.advance(MICROSECOND)
        assert await store.sweep(older_than=AT_ONCE, limit=100) == Swept(dedup=1)
        assert await store.sweep(older_than=AT_ONCE, limit=100) == Swept()

    async def test_a_dedup_window_that_has_ended_is_swept_however_young_it_is(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", dedup_for=MINUTE))
        clock.advance(MINUTE)

        assert await store.sweep(older_than=HOUR * 24, limit=100) == Swept(dedup=1)

    async def test_a_dedup_window_that_is_open_stays_and_works(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("short", dedup_for=MINUTE))
        await store.publish(timer("long", dedup_for=HOUR))
        for delivery in await claim_all(store):
            await settle_one(store, delivery, Done())
        clock.advance(MINUTE)

        assert await store.sweep(older_than=AT_ONCE, limit=100) == Swept(dedup=1)

        assert await store.publish(timer("long")) is None
        assert await store.publish(timer("short")) is not None

    async def test_sweeping_a_dedup_window_leaves_the_message_that_opened_it(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        await store.publish(timer("reminder", b"waiting", dedup_for=MINUTE))
        clock.advance(MINUTE)

        await store.sweep(older_than=AT_ONCE, limit=100)

        assert await store.publish(timer("reminder", b"too many")) is None
        assert await claim_bodies(store) == [b"waiting"]

    async def test_a_sweep_takes_no_more_dedup_windows_than_the_limit(
        self, store: FullStore, clock: ManualClock
    ) -> None:
        for queue, name in (("orders", "a"), ("orders", "b"), ("refunds", "a"), ("refunds", "c")):
            await store.publish(timer(name, queue=queue, dedup_for=MINUTE))
        clock.advance(MINUTE)

        swept = [await store.sweep(older_than=AT_ONCE, limit=3) for _ in range(3)]

        assert swept == [Swept(dedup=3), Swept(dedup=1), Swept()]

    # ---------------------------------------------------------------------------------------- together

    async def test_nothing_is_older_than_time_itself(self, store: FullStore) -> None:
        letter = await bury(store, message())

        assert await store.sweep(older_than=timedelta.max, limit=10) == Swept()
        assert await store.purge(DeadFilter(older_than=timedelta.max), limit=10) == 0
        assert await store.dead(DeadFilter(older_than=timedelta.max)) == []
        assert await store.dead(EVERYTHING) == [letter]

    async def test_the_limit_is_for_each_kind(
        self, store: FullStore, keeper: FullStore, clock: ManualClock
    ) -> None:
        await deliver(keeper, 3)
        for _ in range(3):
            await bury(store, message())
        for name in ("a", "b", "c"):
            await store.publish(timer(name, due=HOUR * 24, dedup_for=MINUTE))
        clock.advance(HOUR)

        assert await store.sweep(older_than=MINUTE, limit=2) == Swept(delivered=2, dead=2, dedup=2)
        assert await store.sweep(older_than=MINUTE, limit=2) == Swept(delivered=1, dead=1, dedup=1)
        assert await store.sweep(older_than=MINUTE, limit=2) == Swept()
        assert await store.stats() == {QUEUE: QueueStats(scheduled=3)}


async def deliver(store: FullStore, count: int, *, queue: str = QUEUE) -> None:
    """Publish, claim and finish this many messages."""
    await store.publish_batch([message(b"%d" % number, queue=queue) for number in range(count)])
    deliveries = await claim_all(store, queue)
    results = await store.settle([Settlement(delivery, Done()) for delivery in deliveries])
    assert list(results) == [WriteResult.WRITTEN] * count
