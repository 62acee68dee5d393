"""A message joins the commands of a caller's MULTI: all of it happens, or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis as Client
from redis.exceptions import WatchError

from nightmail.errors import CannotJoin, LeaseLost, NotInTransaction, OtherDatabase, SchemaMissing
from nightmail.stores.redis import RedisStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, message
from testkit.servers.redis import Redis
from tests.stores.redis.support import client, open_store
from tests.stores.support import claim, until

pytestmark = pytest.mark.redis


# ----------------------------------------------------------------------------------------- joining


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decoded"])
async def test_a_message_is_stored_together_with_the_callers_own_commands(
    redis_url: str, decode: bool
) -> None:
    async with open_store(redis_url) as store, client(redis_url, decode_responses=decode) as own:
        async with own.pipeline(transaction=True) as pipe:
            pipe.set("order", "1")
            id_ = await store.publish(message(b"hello", headers={"a": "b"}), transaction=pipe)
            pipe.incr("orders")
            assert await store.peek() == []
            assert await own.get("order") is None
            await pipe.execute()

        (delivery,) = await claim(store)
        assert (delivery.id, delivery.body, delivery.headers) == (id_, b"hello", {"a": "b"})
        assert int(await own.get("orders")) == 1


async def test_a_batch_over_several_queues_is_stored_together(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        ids = await store.publish_batch(
            [message(b"a"), message(b"b", queue="refunds"), message(b"c")], transaction=pipe
        )
        await pipe.execute()

        orders, refunds = await claim(store), await claim(store, queue="refunds")
        assert [(delivery.id, delivery.body) for delivery in orders] == [(ids[0], b"a"), (ids[2], b"c")]
        assert [(delivery.id, delivery.body) for delivery in refunds] == [(ids[1], b"b")]


async def test_a_pipeline_that_is_reset_leaves_nothing_behind(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        async with own.pipeline() as pipe:
            pipe.set("order", "1")
            await store.publish(message(), transaction=pipe)
            await store.publish_batch([message(), message()], transaction=pipe)
            await pipe.reset()

        assert await store.stats() == {}
        assert await own.get("order") is None


async def test_a_pipeline_whose_watched_key_changed_stores_nothing(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        with pytest.raises(WatchError):
            async with own.pipeline() as pipe:
                await pipe.watch("stock")
                pipe.multi()
                pipe.decr("stock")
                await store.publish(message(), transaction=pipe)
                await own.set("stock", 0)
                await pipe.execute()

        assert await store.stats() == {}
        assert await own.get("stock") == b"0"


async def test_a_watching_pipeline_of_a_pool_with_one_connection_can_be_joined(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url, max_connections=1) as own:
        async with own.pipeline() as pipe, asyncio.timeout(5):
            await pipe.watch("stock")
            pipe.multi()
            pipe.decr("stock")
            await store.publish(message(), transaction=pipe)
            await pipe.execute()

        assert len(await claim(store)) == 1


async def test_a_server_that_does_not_know_the_script_stores_the_message_all_the_same(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        pipe.set("order", "1")
        await store.publish(message(), transaction=pipe)
        await own.script_flush()
        await pipe.execute()

        assert len(await claim(store)) == 1


async def test_a_message_in_a_pipeline_rings_when_it_is_executed(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        with store.listen([QUEUE]) as bell:
            await until(lambda: store.listening)
            bell.clear()
            await store.publish(message(), transaction=pipe)
            assert not await bell.wait(0.05)
            await pipe.execute()

            assert await bell.wait(5)


async def test_an_id_is_sortable_by_time_and_no_two_processes_make_the_same(redis_url: str) -> None:
    async with open_store(redis_url) as store, open_store(redis_url) as other, client(redis_url) as own:
        async with own.pipeline() as pipe:
            ids = [(await worker.publish(message(), transaction=pipe)) or 0 for worker in (store, other) * 50]
            await pipe.execute()

        assert len(set(ids)) == 100
        assert all(0 < id_ < 2**63 for id_ in ids)
        for worker_ids in (ids[::2], ids[1::2]):
            assert worker_ids == sorted(worker_ids)
        assert {pending.id for pending in await store.peek()} == set(ids)


async def test_a_message_that_was_queued_early_and_executed_late_keeps_the_id_that_was_told(
    redis_url: str,
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        early = await store.publish(message(b"early"), transaction=pipe)
        late = await store.publish(message(b"late"))
        await pipe.execute()

        assert early is not None
        assert late is not None
        assert early < late
        assert {delivery.id: delivery.body for delivery in await claim(store)} == {
            early: b"early",
            late: b"late",
        }


async def test_delays_in_a_pipeline_count_from_its_execution_by_the_clock_of_the_server(
    redis_url: str,
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        await store.publish(message(due=HOUR), transaction=pipe)
        await pipe.execute()

        (pending,) = await store.peek()
        assert pending.due_at - pending.published_at == HOUR


# ------------------------------------------------------------------------------------------ timers


async def test_a_timer_in_a_pipeline_is_skipped_when_its_name_is_taken(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        first = await store.publish(message(b"first", timer_id="t", due=HOUR))
        await store.publish(message(b"second", timer_id="t"), transaction=pipe)
        pipe.set("order", "1")
        await pipe.execute()

        assert [(pending.id, pending.body) for pending in await store.peek()] == [(first, b"first")]
        assert await own.get("order") == b"1"


async def test_a_timer_in_a_pipeline_replaces_the_one_that_waits(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        first = await store.publish(message(b"first", timer_id="t", due=HOUR))
        await store.publish(message(b"second", timer_id="t", on_conflict="replace"), transaction=pipe)
        await pipe.execute()

        assert [(delivery.id, delivery.body) for delivery in await claim(store)] == [(first, b"second")]


async def test_a_handler_arms_its_own_timer_again_in_a_pipeline(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        await store.publish(message(b"first", timer_id="t"))
        (running,) = await claim(store)
        new = await store.publish(message(b"again", timer_id="t"), transaction=pipe, own=running)
        await pipe.execute()

        assert [pending.id for pending in await store.peek(QUEUE, timer_id="t")] == [new]


async def test_a_late_handler_is_told_so_before_anything_is_queued(redis_url: str) -> None:
    clock = ManualClock()
    async with (
        open_store(redis_url, clock=clock) as store,
        client(redis_url) as own,
        own.pipeline() as pipe,
    ):
        await store.publish(message(timer_id="t"))
        (late,) = await claim(store)
        clock.advance(LEASE)
        await claim(store)

        with pytest.raises(LeaseLost):
            await store.publish(message(timer_id="t"), transaction=pipe, own=late)
        assert len(pipe) == 0


async def test_a_lease_lost_between_queueing_and_executing_stores_nothing(redis_url: str) -> None:
    clock = ManualClock()
    async with (
        open_store(redis_url, clock=clock) as store,
        client(redis_url) as own,
        own.pipeline() as pipe,
    ):
        await store.publish(message(b"running", timer_id="t"))
        (late,) = await claim(store)
        await store.publish(message(b"again", timer_id="t"), transaction=pipe, own=late)
        clock.advance(LEASE)
        await claim(store)

        await pipe.execute()

        assert await store.peek() == []


# ---------------------------------------------------------------------------------------- refusals


async def test_a_pipeline_without_multi_is_refused(redis_url: str) -> None:
    async with (
        open_store(redis_url) as store,
        client(redis_url) as own,
        own.pipeline(transaction=False) as pipe,
    ):
        with pytest.raises(NotInTransaction, match="MULTI"):
            await store.publish(message(), transaction=pipe)
        assert len(pipe) == 0


async def test_a_watching_pipeline_before_its_multi_is_refused(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        await pipe.watch("stock")
        with pytest.raises(NotInTransaction, match=r"multi\(\)"):
            await store.publish(message(), transaction=pipe)
        assert await store.stats() == {}


async def test_a_publish_that_may_raise_is_refused_with_the_reason(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        with pytest.raises(CannotJoin, match="known only when the pipeline is executed"):
            await store.publish(message(timer_id="t", on_conflict="raise"), transaction=pipe)
        assert len(pipe) == 0


@pytest.mark.parametrize("given", [object(), "pipe", 7])
async def test_what_is_no_pipeline_is_refused(redis_url: str, given: object) -> None:
    async with open_store(redis_url) as store:
        with pytest.raises(CannotJoin, match=type(given).__name__):
            await store.publish(message(), transaction=given)


async def test_a_client_is_refused(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        with pytest.raises(CannotJoin, match="pipeline"):
            await store.publish(message(), transaction=own)


async def test_a_pipeline_to_another_database_is_refused(redis_server: Redis, redis_url: str) -> None:
    async with (
        open_store(redis_url) as store,
        client(redis_server.url + "?db=30") as own,
        own.pipeline() as pipe,
    ):
        with pytest.raises(OtherDatabase):
            await store.publish(message(), transaction=pipe)
        assert len(pipe) == 0


async def test_a_store_that_was_not_migrated_refuses_a_pipeline(redis_url: str) -> None:
    store = RedisStore(redis_url)
    await store.open()
    try:
        async with client(redis_url) as own, own.pipeline() as pipe:
            with pytest.raises(SchemaMissing):
                await store.publish(message(), transaction=pipe)
    finally:
        await store.close()


async def test_what_needs_an_answer_is_refused_in_a_pipeline(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as pipe:
        await store.publish(message(timer_id="t"))
        (delivery,) = await claim(store)
        verbs: list[Any] = [
            lambda: store.cancel(QUEUE, "t", transaction=pipe),
            lambda: store.cancel_all(QUEUE, transaction=pipe),
            lambda: store.reschedule(QUEUE, "t", HOUR, transaction=pipe),
            lambda: store.peek(transaction=pipe),
            lambda: store.hold([delivery], transaction=pipe),
            lambda: store.ack([delivery], transaction=pipe),
        ]
        for verb in verbs:
            with pytest.raises(CannotJoin, match="pipeline"):
                await verb()
        assert len(pipe) == 0


async def test_a_store_over_a_callers_client_leaves_it_open_and_takes_no_connection_of_its_pool(
    redis_url: str,
) -> None:
    own = Client.from_url(redis_url, decode_responses=True, max_connections=1)
    try:
        async with open_store(own) as store:
            await store.publish(message(b"\xff\x00 bytes"))
            (delivery,) = await claim(store)
            assert delivery.body == b"\xff\x00 bytes"
        assert await own.ping()
    finally:
        await own.aclose()
