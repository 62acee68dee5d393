"""What only the memory store has: data that stores share, and transactions that wait for one another."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from nightmail.errors import CannotJoin, OtherDatabase, StoreUnavailable
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores import open_store
from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance import RolledBack
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, SECOND, bodies, claim_all, message

pytestmark = pytest.mark.memory


async def let_others_run() -> None:
    """Long enough for a task that waits for nothing to end."""
    for _ in range(10):
        await asyncio.sleep(0)


class TestSharedData:
    async def test_stores_without_data_in_common_see_nothing_of_each_other(self) -> None:
        await MemoryStore().publish(message())

        assert await claim_all(MemoryStore()) == []

    async def test_messages_stay_when_the_store_that_published_them_is_gone(self) -> None:
        data = MemoryData()
        store = MemoryStore(data)
        await store.publish(message(b"left behind"))
        await store.close()
        del store
        gc.collect()

        assert bodies(await claim_all(MemoryStore(data))) == [b"left behind"]

    async def test_a_publish_rings_in_every_store_over_the_data_and_in_no_other(self) -> None:
        data = MemoryData()
        near, far, apart = MemoryStore(data), MemoryStore(data), MemoryStore()

        with (
            near.listen([QUEUE]) as at_near,
            far.listen([QUEUE]) as at_far,
            apart.listen([QUEUE]) as elsewhere,
        ):
            await near.publish(message())

            assert await at_near.wait(0)
            assert await at_far.wait(0)
            assert not await elsewhere.wait(0)

    async def test_without_a_clock_it_goes_by_the_time_of_day(self) -> None:
        store = open_store("memory://")
        assert isinstance(store, MemoryStore)

        before = datetime.now(UTC)
        await store.publish(message())
        (delivery,) = await claim_all(store)

        assert before <= delivery.published_at <= delivery.claimed_at <= datetime.now(UTC)

    def test_data_outlives_the_event_loop_it_was_used_on(self) -> None:
        data = MemoryData()
        store = MemoryStore(data)

        async def publish_while_a_claim_waits(body: bytes) -> list[bytes]:
            async with data.transaction() as transaction:
                await store.publish(message(body), transaction=transaction)
                waiting = asyncio.create_task(claim_all(store))
                await let_others_run()
            return bodies(await waiting)

        assert asyncio.run(publish_while_a_claim_waits(b"first")) == [b"first"]
        assert asyncio.run(publish_while_a_claim_waits(b"second")) == [b"second"]


class TestTransactions:
    @pytest.mark.parametrize("thing", ["a session", object(), 1, MemoryData()])
    async def test_what_is_not_a_transaction_cannot_be_joined(self, thing: object) -> None:
        store = MemoryStore()

        with pytest.raises(CannotJoin, match=f"a {type(thing).__name__} is not a transaction"):
            await store.publish(message(), transaction=thing)

        assert await store.stats() == {}

    async def test_a_transaction_over_other_data_cannot_be_joined(self) -> None:
        store = MemoryStore()

        async with MemoryData().transaction() as transaction:
            with pytest.raises(OtherDatabase):
                await store.publish(message(), transaction=transaction)
            with pytest.raises(OtherDatabase):
                await store.ack([], transaction=transaction)

        assert await store.stats() == {}

    async def test_who_writes_without_the_open_transaction_waits_until_it_ends(self) -> None:
        store = MemoryStore()

        async with store.data.transaction() as transaction:
            claiming = asyncio.create_task(claim_all(store))
            publishing = asyncio.create_task(store.publish(message(b"later")))
            await store.publish(message(b"sooner"), transaction=transaction)
            await let_others_run()
            assert not claiming.done()
            assert not publishing.done()

        assert bodies(await claiming) == [b"sooner"]
        assert await publishing is not None

    async def test_a_second_transaction_waits_for_the_first(self) -> None:
        data = MemoryData()
        order = []

        async def second() -> None:
            async with data.transaction():
                order.append("second begins")

        async with data.transaction():
            waiting = asyncio.create_task(second())
            await let_others_run()
            order.append("first ends")
        await waiting

        assert order == ["first ends", "second begins"]

    async def test_a_transaction_begun_again_and_again_keeps_no_other_waiting_for_ever(self) -> None:
        store = MemoryStore()
        await store.publish(message())
        claiming = None

        for _ in range(3):
            async with store.data.transaction():
                claiming = claiming or asyncio.create_task(claim_all(store))
                await let_others_run()

        assert claiming is not None
        assert claiming.done()

    async def test_who_gives_up_waiting_for_a_turn_has_written_nothing(self) -> None:
        store = MemoryStore()

        async with store.data.transaction():
            publishing = asyncio.create_task(store.publish(message()))
            await let_others_run()
            publishing.cancel()
            await asyncio.wait([publishing])

        assert publishing.cancelled()
        assert await store.stats() == {}

    async def test_a_task_that_would_wait_for_its_own_transaction_is_told_so(self) -> None:
        store = MemoryStore()

        async with store.data.transaction() as transaction:
            with pytest.raises(StoreUnavailable, match="pass it"):
                await store.publish(message(b"without it"))
            await store.publish(message(b"with it"), transaction=transaction)

        assert bodies(await claim_all(store)) == [b"with it"]

    async def test_settling_and_extending_work_around_what_an_open_transaction_has_locked(self) -> None:
        store = MemoryStore()
        await store.publish_batch([message(b"acked"), message(b"held"), message(b"free")])
        acked, held, free = await claim_all(store)

        async with store.data.transaction() as transaction:
            await store.ack([acked], transaction=transaction)
            await store.hold([held], transaction=transaction)

            extended = await store.extend([acked, held, free], LEASE)
            settled = await store.settle([Settlement(each, Done()) for each in (acked, held, free)])

        assert extended == [WriteResult.BUSY, WriteResult.BUSY, WriteResult.WRITTEN]
        assert settled == [WriteResult.BUSY, WriteResult.BUSY, WriteResult.WRITTEN]
        assert await store.settle([Settlement(each, Done()) for each in (acked, held)]) == [
            WriteResult.LOST,
            WriteResult.WRITTEN,
        ]

    async def test_a_lease_lost_before_the_row_was_locked_is_lost_and_not_busy(self) -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        await store.publish(message())
        (late,) = await claim_all(store)
        clock.advance(LEASE)
        (holder,) = await claim_all(store)

        async with store.data.transaction() as transaction:
            await store.hold([holder], transaction=transaction)

            assert await store.extend([late, holder], LEASE) == [WriteResult.LOST, WriteResult.BUSY]

    async def test_others_see_what_was_committed_and_the_transaction_what_it_wrote(self) -> None:
        store = MemoryStore()
        await store.publish(message(b"old", timer_id="named"))
        await store.publish(message(b"cancelled", timer_id="gone"))

        async with store.data.transaction() as transaction:
            await store.cancel(QUEUE, "gone", transaction=transaction)
            await store.publish(
                message(b"new", timer_id="named", on_conflict="replace"), transaction=transaction
            )
            await store.publish(message(b"added"), transaction=transaction)

            without = [found.body for found in await store.peek(QUEUE)]
            within = [found.body for found in await store.peek(QUEUE, transaction=transaction)]
            result = (await store.stats())[QUEUE]

        assert without == [b"old", b"cancelled"]
        assert sorted(within) == [b"added", b"new"]
        assert result.ready == 2

    async def test_bells_ring_when_the_transaction_commits_and_not_before(self) -> None:
        store = MemoryStore()

        with store.listen([QUEUE]) as bell:
            async with store.data.transaction() as transaction:
                await store.publish(message(), transaction=transaction)
                assert not await bell.wait(0)

            assert await bell.wait(0)

    async def test_bells_do_not_ring_for_what_was_rolled_back(self) -> None:
        store = MemoryStore()

        with store.listen([QUEUE]) as bell:
            with pytest.raises(RolledBack):
                async with store.data.transaction() as transaction:
                    await store.publish(message(), transaction=transaction)
                    raise RolledBack

            assert not await bell.wait(0)


class TestDeliveredHistory:
    async def test_what_is_done_is_kept_where_that_was_asked_for(self) -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock, keep_delivered=True)
        id_ = await store.publish(message(b"done", timer_id="named", ordering_key="k", priority=3))
        published_at = clock.now()
        (delivery,) = await claim_all(store)
        delivered_at = clock.advance(SECOND)

        await store.settle([Settlement(delivery, Done())])

        (record,) = store.data.delivered
        assert (record.id, record.queue, record.body) == (id_, QUEUE, b"done")
        assert (record.timer_id, record.ordering_key, record.priority) == ("named", "k", 3)
        assert (record.published_at, record.delivered_at) == (published_at, delivered_at)


class TestLettingGo:
    async def test_a_message_that_leaves_its_ordering_key_by_replacement_wakes_the_next_in_line(self) -> None:
        store = MemoryStore()
        await store.publish(message(b"head", timer_id="named", ordering_key="k"))
        await store.publish(message(b"follower", ordering_key="k"))
        (head,) = await claim_all(store)
        await store.settle([Settlement(head, Retry(HOUR))])
        assert await claim_all(store) == []

        with store.listen([QUEUE]) as bell:
            await store.publish(message(b"moved away", timer_id="named", due=HOUR, on_conflict="replace"))
            assert await bell.wait(0)

        assert bodies(await claim_all(store)) == [b"follower"]

    async def test_the_end_of_a_head_wakes_one_that_became_due_while_no_worker_looked(self) -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        await store.publish(message(b"head", ordering_key="k"))
        await store.publish(message(b"follower", ordering_key="k", due=HOUR))
        (head,) = await claim_all(store)
        clock.advance(HOUR)

        with store.listen([QUEUE]) as bell:
            await store.settle([Settlement(head, Done())])
            assert await bell.wait(0)


class TestLooking:
    async def test_a_clock_set_back_makes_due_messages_wait_again(self) -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        await store.publish(message(b"plain", due=SECOND))
        await store.publish(message(b"in line", due=SECOND, ordering_key="k"))
        await store.publish(message(b"in line too", ordering_key="k"))
        clock.advance(SECOND)
        assert bodies(await claim_all(store, limit=1)) == [b"plain"]

        clock.advance(-SECOND)
        assert bodies(await claim_all(store)) == [b"in line too"]

    async def test_a_clock_set_back_gives_an_expired_lease_its_time_again(self) -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        await store.publish_batch([message(b"first"), message(b"second")])
        await claim_all(store)
        clock.advance(LEASE)
        assert bodies(await claim_all(store, limit=1)) == [b"first"]

        clock.advance(-SECOND)
        assert await claim_all(store) == []

    async def test_times_beyond_the_calendar_end_with_it(self) -> None:
        store = MemoryStore()
        await store.publish(message(b"a long retry"))
        (delivery,) = await claim_all(store)

        await store.settle([Settlement(delivery, Retry(timedelta.max))])

        assert [found.due_at for found in await store.peek()] == [datetime.max.replace(tzinfo=UTC)]

    async def test_a_timer_moved_many_times_leaves_nothing_behind(self) -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        await store.publish(message(timer_id="restless", due=HOUR))

        for minutes in range(1000):
            await store.reschedule(QUEUE, "restless", HOUR + timedelta(minutes=minutes))

        scheduled = store.data.tables.queue(QUEUE)._scheduled
        assert len(scheduled._heap) < 100
        claimed = await store.claim([QUEUE], limit=1, lease=LEASE, token=uuid4())
        assert claimed.next_in == HOUR + timedelta(minutes=999)
