"""What a handler writes in the pipeline of `transaction` and the end of its message are one step, or nothing is."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
import redis
from redis.asyncio import Redis as Client
from redis.asyncio.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, ResponseError

from nightmail.errors import (
    CannotJoin,
    LeaseLost,
    NightmailError,
    OtherDatabase,
    SchemaDrift,
    StoreUnavailable,
)
from nightmail.message import Delivery
from nightmail.outcome import Dead, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Blocking, Settlement
from nightmail.stores.redis import RedisStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, SECOND, message
from testkit.servers.redis import Redis
from tests.stores.redis.support import client, open_store, transaction
from tests.stores.support import claim, until

pytestmark = pytest.mark.redis


class Broken(Exception):
    """Raised by a block."""


async def claimed(store: RedisStore, **options: Any) -> Delivery:
    await store.publish(message(**options))
    (delivery,) = await claim(store, limit=1)
    return delivery


async def died(store: RedisStore) -> Delivery:
    """A dead letter in our hands."""
    await store.settle([Settlement(await claimed(store), Dead("rejected"))])
    found = await store.claim_dead([QUEUE], limit=1, lease=LEASE, token=uuid4())
    return found.deliveries[0]


# ------------------------------------------------------------------------------------- in one step


@pytest.mark.parametrize("decode", [False, True])
async def test_the_commands_and_the_end_of_the_message_go_together(redis_url: str, decode: bool) -> None:
    async with open_store(redis_url) as store, client(redis_url, decode_responses=decode) as own:
        delivery = await claimed(store)
        async with transaction(store, [delivery], own) as pipe:
            pipe.incr("balance")
            assert await own.get("balance") is None
            assert (await store.stats())[QUEUE].running == 1

        assert int(await own.get("balance")) == 1
        assert await store.stats() == {}


async def test_several_messages_of_several_queues_end_together(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish_batch([message(), message(), message(queue="refunds")])
        deliveries = [*await claim(store), *await claim(store, queue="refunds")]
        async with transaction(store, deliveries, own) as pipe:
            pipe.incr("balance")

        assert await store.stats() == {}


async def test_a_dead_letter_ends_together_with_the_commands(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        letter = await died(store)
        async with transaction(store, [letter], own) as pipe:
            pipe.incr("balance")
            await store.ack([letter], transaction=pipe)

        assert await own.get("balance") == b"1"
        assert await store.dead(DeadFilter()) == []


async def test_what_is_done_in_a_transaction_is_kept_where_that_is_asked_for(redis_url: str) -> None:
    async with open_store(redis_url, keep_delivered=True) as store, client(redis_url) as own:
        delivery = await claimed(store)
        async with transaction(store, [delivery], own) as pipe:
            pipe.incr("balance")

        assert await own.zcard("{nightmail:orders}:delivered") == 1


async def test_a_message_published_in_the_transaction_is_stored_with_it(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store, timer_id="t")
        async with transaction(store, [delivery], own) as pipe:
            new = await store.publish(message(b"next"), transaction=pipe)
            again = await store.publish(message(b"again", timer_id="t"), transaction=pipe, own=delivery)
            assert await store.peek() == []

        assert {pending.id: pending.body for pending in await store.peek()} == {new: b"next", again: b"again"}


async def test_what_waits_behind_the_message_is_rung_for(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store, ordering_key="k")
        await store.publish(message(b"behind", ordering_key="k"))
        with store.listen([QUEUE]) as bell:
            await until(lambda: store.listening)
            bell.clear()
            async with transaction(store, [delivery], own):
                pass
            assert await bell.wait(5)
        assert [each.body for each in await claim(store)] == [b"behind"]


async def test_a_server_that_does_not_know_the_scripts_carries_it_out_all_the_same(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store)
        async with transaction(store, [delivery], own) as pipe:
            pipe.incr("balance")
            await own.script_flush()

        assert await store.stats() == {}


async def test_a_client_with_one_connection_is_enough(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url, max_connections=1) as own:
        delivery = await claimed(store)
        async with asyncio.timeout(5), transaction(store, [delivery], own) as pipe:
            pipe.incr("balance")
            await store.publish(message(b"next"), transaction=pipe)

        assert await own.get("balance") == b"1"


# ------------------------------------------------------------------------------------ a lost lease


@pytest.mark.parametrize("letter", [False, True])
async def test_a_lease_that_was_lost_before_is_told_before_the_block_runs(
    redis_url: str, letter: bool
) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        late = await (died(store) if letter else claimed(store))
        clock.advance(LEASE)
        take = store.claim_dead if letter else store.claim
        assert len((await take([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries) == 1

        with pytest.raises(LeaseLost) as lost:
            async with transaction(store, [late], own):
                pytest.fail("the block ran")
        assert lost.value.ids == (late.id,)


@pytest.mark.parametrize("letter", [False, True])
@pytest.mark.parametrize("decode", [False, True])
async def test_a_takeover_while_the_block_runs_leaves_nothing_of_its_commands(
    redis_url: str, letter: bool, decode: bool
) -> None:
    clock = ManualClock()
    async with (
        open_store(redis_url, clock=clock) as store,
        client(redis_url, decode_responses=decode) as own,
    ):
        late = await (died(store) if letter else claimed(store))
        take = store.claim_dead if letter else store.claim
        with pytest.raises(LeaseLost) as lost:
            async with transaction(store, [late], own) as pipe:
                pipe.incr("balance")
                await store.publish(message(b"next", queue="other"), transaction=pipe)
                clock.advance(LEASE)
                (other,) = (await take([QUEUE], limit=1, lease=LEASE, token=uuid4())).deliveries

        assert lost.value.ids == (late.id,)
        assert await own.get("balance") is None
        assert await store.peek("other") == []
        # It is the other one's, unharmed.
        assert await store.settle([Settlement(other, Retry())]) == [WriteResult.WRITTEN]


async def test_of_several_messages_the_lost_ones_are_named_and_none_is_done(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish_batch([message(b"a"), message(b"b")])
        one, two = await claim(store)
        with pytest.raises(LeaseLost) as lost:
            async with transaction(store, [one, two], own) as pipe:
                pipe.incr("balance")
                await store.settle([Settlement(two, Retry(HOUR))])

        assert lost.value.ids == (two.id,)
        assert await own.get("balance") is None
        assert await store.extend([one], LEASE) == [WriteResult.WRITTEN]


async def test_a_message_that_was_settled_and_claimed_again_by_the_same_worker_is_not_the_same_delivery(
    redis_url: str,
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        first = await claimed(store)
        await store.settle([Settlement(first, Retry())])
        await claim(store)
        with pytest.raises(LeaseLost):
            async with transaction(store, [first], own):
                pytest.fail("the block ran")


# ------------------------------------------------------------------------- what does not disturb it


@pytest.mark.parametrize("letter", [False, True])
async def test_a_renewal_does_not_disturb_it(redis_url: str, letter: bool) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        delivery = await (died(store) if letter else claimed(store))
        async with transaction(store, [delivery], own) as pipe:
            pipe.incr("balance")
            clock.advance(LEASE - SECOND)
            assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]
            clock.advance(LEASE + SECOND)
            # Even when it had ended, as long as no other worker has taken over.
            assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]

        assert await own.get("balance") == b"1"
        assert await store.stats() == {}


@pytest.mark.parametrize("letter", [False, True])
async def test_a_lease_that_ended_and_was_not_taken_over_does_not_disturb_it(
    redis_url: str, letter: bool
) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, client(redis_url) as own:
        delivery = await (died(store) if letter else claimed(store))
        async with transaction(store, [delivery], own) as pipe:
            pipe.incr("balance")
            clock.advance(LEASE * 2)
            await store.stats()
            await store.dead(DeadFilter())
            await store.peek()

        assert await own.get("balance") == b"1"
        assert await store.stats() == {}


async def test_being_replaced_while_it_runs_does_not_disturb_it(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store, timer_id="t")
        async with transaction(store, [delivery], own) as pipe:
            pipe.incr("balance")
            new = await store.publish(message(b"new", timer_id="t", on_conflict="replace"))

        assert await own.get("balance") == b"1"
        assert [pending.id for pending in await store.peek()] == [new]
        assert (await store.stats())[QUEUE].superseded == 0


async def test_what_others_do_in_the_same_queue_does_not_disturb_it(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store, timer_id="t", ordering_key="k")
        async with transaction(store, [delivery], own) as pipe:
            pipe.incr("balance")
            await store.publish(message(b"behind", ordering_key="k"))
            await store.publish(message(b"next", timer_id="t"), own=delivery)
            await store.publish_batch([message(), message(due=HOUR)])
            await claim(store)
            await store.cancel(QUEUE, "t")
            await store.cancel_all(QUEUE)

        assert await own.get("balance") == b"1"


# -------------------------------------------------------------------------------------- what fails


@pytest.mark.parametrize("error", [Broken, asyncio.CancelledError])
async def test_a_block_that_raises_leaves_nothing_and_gives_its_connection_back_clean(
    redis_url: str, error: type[BaseException]
) -> None:
    async with open_store(redis_url) as store, client(redis_url, max_connections=1) as own:
        delivery = await claimed(store)
        with pytest.raises(error):
            async with transaction(store, [delivery], own) as pipe:
                pipe.incr("balance")
                raise error

        assert await own.get("balance") is None
        assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]
        # Nothing is watched any more on the only connection there is.
        await store.settle([Settlement(delivery, Retry())])
        async with own.pipeline() as next_pipe:
            assert await next_pipe.incr("balance").execute() == [1]


async def test_executing_the_pipeline_by_hand_is_refused_and_nothing_is_carried_out(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store)
        with pytest.raises(NightmailError, match="leave the block"):
            async with transaction(store, [delivery], own) as pipe:
                pipe.incr("balance")
                await pipe.execute()

        assert await own.get("balance") is None
        assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]


async def test_a_pipeline_that_was_reset_in_the_block_carries_out_nothing(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store)
        with pytest.raises(StoreUnavailable, match="nothing was carried out"):
            async with transaction(store, [delivery], own) as pipe:
                await pipe.reset()
                pipe.incr("balance")

        assert await own.get("balance") is None
        assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]


async def test_a_connection_lost_in_the_block_carries_out_nothing_though_the_driver_would_make_a_new_one(
    redis_server: Redis, redis_url: str
) -> None:
    clock = ManualClock()
    own = Client(
        host="127.0.0.1",
        port=redis_server.port,
        db=int(redis_url.rpartition("/")[2]),
        health_check_interval=30,
    )
    try:
        async with open_store(redis_url, clock=clock) as store, client(redis_url) as operator:
            delivery = await claimed(store)
            with pytest.raises(StoreUnavailable, match="nothing was carried out"):
                async with transaction(store, [delivery], own) as pipe:
                    pipe.incr("balance")
                    connection: Any = pipe.connection
                    number = await ask(connection, "CLIENT", "ID")
                    clock.advance(LEASE)
                    await claim(store)
                    await operator.client_kill_filter(_id=number)
                    await until(connection._reader.at_eof)
                    # The driver would find out by calls, and go on with another connection, which watches nothing.
                    connection.next_health_check = 0

            assert await operator.get("balance") is None
            assert (await store.stats())[QUEUE].running == 1
            assert connection.health_check_interval == 30
    finally:
        await own.aclose()


async def ask(connection: Any, *command: str) -> Any:
    await connection.send_command(*command)
    return await connection.read_response()


async def test_a_reply_that_is_lost_is_told_as_uncertain_and_the_token_tells(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Pipeline._execute_transaction

    async def deaf(pipe: Any, connection: Any, *arguments: Any) -> Any:
        await execute(pipe, connection, *arguments)
        pipe.watching = True
        await connection.disconnect()
        raise RedisConnectionError

    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store)
        with pytest.raises(StoreUnavailable, match="together, or neither"):
            async with transaction(store, [delivery], own) as pipe:
                pipe.incr("balance")
                monkeypatch.setattr(Pipeline, "_execute_transaction", deaf)
        monkeypatch.undo()

        assert await own.get("balance") == b"1"
        assert await store.settle([Settlement(delivery, Retry(), repeated=True)]) == [WriteResult.UNKNOWN]


async def test_a_command_of_the_callers_that_fails_alone_is_raised(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await own.set("name", "not a number")
        delivery = await claimed(store)
        with pytest.raises(ResponseError, match="not an integer"):
            async with transaction(store, [delivery], own) as pipe:
                pipe.incr("name")
                pipe.incr("balance")

        assert await own.get("balance") == b"1"
        assert await store.stats() == {}


async def test_a_command_that_the_server_does_not_know_leaves_everything_as_it_was(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store)
        with pytest.raises(ResponseError):
            async with transaction(store, [delivery], own) as pipe:
                pipe.incr("balance")
                pipe.execute_command("NONSENSE")

        assert await own.get("balance") is None
        assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]


async def test_a_command_that_the_driver_cannot_send_leaves_everything_as_it_was(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url, max_connections=1) as own:
        delivery = await claimed(store)
        with pytest.raises(DataError):
            async with transaction(store, [delivery], own) as pipe:
                pipe.incr("balance")
                pipe.set("name", object())

        assert await own.get("balance") is None
        assert await store.extend([delivery], LEASE) == [WriteResult.WRITTEN]


async def test_a_server_that_cannot_be_reached_is_told_before_the_block_runs(
    redis_server: Redis, redis_url: str
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store)
        await asyncio.to_thread(redis_server.kill)
        with pytest.raises(StoreUnavailable):
            async with transaction(store, [delivery], own):
                pytest.fail("the block ran")


async def test_a_foreign_thing_among_the_keys_is_told_before_the_block_runs(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        delivery = await claimed(store)
        await own.set("{nightmail:orders}:expired", "not ours")
        with pytest.raises(SchemaDrift):
            async with transaction(store, [delivery], own):
                pytest.fail("the block ran")


# ---------------------------------------------------------------------------------------- refusals


async def test_acknowledging_in_the_pipeline_of_the_transaction_changes_nothing(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish_batch([message(b"a"), message(b"b")])
        one, two = await claim(store)
        async with transaction(store, [one], own) as pipe:
            await store.ack([one], transaction=pipe)
            with pytest.raises(CannotJoin, match="name every delivery"):
                await store.ack([one, two], transaction=pipe)

        assert await store.extend([one, two], LEASE) == [WriteResult.LOST, WriteResult.WRITTEN]


async def test_acknowledging_in_any_other_pipeline_is_refused(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own, own.pipeline() as other:
        delivery = await claimed(store)
        async with transaction(store, [delivery], own) as pipe:
            pass
        for given in (other, pipe, object(), 7, []):
            with pytest.raises(CannotJoin, match="transaction"):
                await store.ack([delivery], transaction=given)


async def test_what_is_no_client_of_this_store_is_refused(redis_server: Redis, redis_url: str) -> None:
    async with (
        open_store(redis_url) as store,
        client(redis_url) as own,
        client(redis_server.url + "?db=30") as elsewhere,
    ):
        delivery = await claimed(store)
        given: list[tuple[object, type[Exception]]] = [
            (own.pipeline(), CannotJoin),
            (redis.Redis.from_url(redis_url), CannotJoin),
            (object(), CannotJoin),
            (elsewhere, OtherDatabase),
        ]
        for each, error in given:
            with pytest.raises(error):
                async with transaction(store, [delivery], each):
                    pytest.fail("the block ran")
        with pytest.raises(ValueError, match="at least one delivery"):
            async with transaction(store, [], own):
                pytest.fail("the block ran")


async def test_a_pipeline_of_synchronous_code_is_refused_also_by_a_store_that_is_not_open(
    redis_url: str,
) -> None:
    pipe = redis.Redis.from_url(redis_url).pipeline()
    store = RedisStore(redis_url)
    for given in (Blocking(pipe), pipe):
        verbs: list[Any] = [
            lambda given=given: store.publish(message(), transaction=given),
            lambda given=given: store.publish_batch([message()], transaction=given),
            lambda given=given: store.cancel(QUEUE, "t", transaction=given),
            lambda given=given: store.reschedule(QUEUE, "t", HOUR, transaction=given),
        ]
        for verb in verbs:
            coroutine = verb()
            with pytest.raises(CannotJoin, match="pipeline"):
                coroutine.send(None)
