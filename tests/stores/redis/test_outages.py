"""A server that restarts, connections that die, replies that are lost: nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.outcome import Done, Retry, WriteResult
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore
from nightmail.stores.redis.link import Link
from testkit.servers.redis import Redis
from tests.stores.redis.support import LEASE, QUEUE, claim, client, done, message, open_store, until

pytestmark = pytest.mark.redis


@contextmanager
def replies_lost(monkeypatch: pytest.MonkeyPatch, script: str) -> Iterator[list[str]]:
    """While this lasts, the connection dies after a call of this script was carried out and before it is answered."""
    lost: list[str] = []
    call = Link.call

    async def deaf(link: Link, asked: Any, **options: Any) -> Any:
        answers = await call(link, asked, **options)
        if asked.script.name == script:
            lost.append(script)
            link.terminate()
            raise RedisConnectionError
        return answers

    with monkeypatch.context() as patch:
        patch.setattr(Link, "call", deaf)
        yield lost


async def works(store: RedisStore) -> bool:
    """Whether the server answers again."""
    try:
        await store.ping()
    except StoreUnavailable:
        return False
    return True


# ----------------------------------------------------------------------------------------- restart


async def test_a_server_that_was_killed_and_started_again_has_everything_and_is_used_again(
    redis_server: Redis, redis_url: str
) -> None:
    async with open_store(redis_url) as store:
        await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])
        held = await claim(store, limit=2)
        with store.listen([QUEUE]) as bell:
            await until(lambda: store.listening)

            await asyncio.to_thread(redis_server.kill)
            for verb in (
                lambda: store.publish(message()),
                lambda: store.publish(message(timer_id="t")),
                lambda: claim(store),
                lambda: done(store, held),
                lambda: store.extend(held, LEASE),
                store.ping,
                store.stats,
            ):
                with pytest.raises(StoreUnavailable):
                    await verb()
            await until(lambda: not store.listening)
            assert store.look_interval.total_seconds() == 1
            bell.clear()
            await asyncio.to_thread(redis_server.start)

            await until(lambda: works(store))
            assert await bell.wait(40)
            await until(lambda: store.listening)
            assert store.look_interval.total_seconds() == 5
        assert await done(store, held) == [WriteResult.WRITTEN, WriteResult.WRITTEN]
        assert [delivery.body for delivery in await claim(store)] == [b"c"]


async def test_a_server_that_was_restarted_while_nobody_asked_is_not_noticed(
    redis_server: Redis, redis_url: str
) -> None:
    async with open_store(redis_url) as store:
        await store.publish(message(b"before"))
        await claim(store, queue="other")

        await asyncio.to_thread(redis_server.restart)

        assert await store.publish(message(b"after")) is not None
        deliveries = await claim(store)
        assert [delivery.body for delivery in deliveries] == [b"before", b"after"]
        assert await done(store, deliveries) == [WriteResult.WRITTEN, WriteResult.WRITTEN]


async def test_whatever_was_told_to_be_stored_survives_a_kill_in_the_middle_of_it(
    redis_server: Redis, redis_url: str
) -> None:
    async with open_store(redis_url) as store:
        told: list[int | None] = []
        uncertain: list[StoreUnavailable] = []

        async def publish(number: int) -> None:
            while True:
                try:
                    told.append(await store.publish(message(timer_id=f"{number} {len(told)}")))
                    told.extend(await store.publish_batch([message(), message()]))
                except StoreUnavailable as error:
                    uncertain.append(error)
                    return

        publishers = [asyncio.ensure_future(publish(number)) for number in range(8)]
        await until(lambda: len(told) > 300)
        await asyncio.to_thread(redis_server.kill)
        await asyncio.gather(*publishers)
        await asyncio.to_thread(redis_server.start)

        found = [pending.id for pending in await store.peek(limit=100_000)]

        assert set(told) <= set(found)
        # The connection that died may have carried one more, or one more batch, of which nobody was told.
        assert len(found) - len(told) <= 2
        assert sum(isinstance(error, PublishUncertain) for error in uncertain) <= 1


async def test_a_publish_that_was_never_sent_is_not_uncertain(redis_server: Redis, redis_url: str) -> None:
    async with open_store(redis_url) as store:
        await asyncio.to_thread(redis_server.stop)
        try:
            for attempt in (message(), message(timer_id="t")):
                with pytest.raises(StoreUnavailable) as refused:
                    await store.publish(attempt)
                assert not isinstance(refused.value, PublishUncertain)
        finally:
            await asyncio.to_thread(redis_server.start)


async def test_a_frozen_server_is_waited_for_no_longer_than_our_patience(
    redis_server: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightmail.stores.redis.lane.PATIENCE_SECONDS", 0.2)
    async with open_store(redis_url) as store:
        await store.ping()
        await asyncio.to_thread(redis_server.pause)
        try:
            async with asyncio.timeout(10):
                with pytest.raises(StoreUnavailable):
                    await store.ping()
        finally:
            await asyncio.to_thread(redis_server.resume)

        await store.ping()


# ------------------------------------------------------------------------------------ lost replies


@pytest.mark.parametrize(
    "verb",
    [
        pytest.param(lambda store: store.publish(message()), id="publish"),
        pytest.param(lambda store: store.publish(message(timer_id="t")), id="timer"),
        pytest.param(
            lambda store: store.publish(message(timer_id="t", on_conflict="replace")), id="replacement"
        ),
        pytest.param(lambda store: store.publish_batch([message()]), id="batch"),
    ],
)
async def test_a_publish_whose_reply_was_lost_is_uncertain_and_was_sent_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, verb: Callable[[RedisStore], Awaitable[Any]]
) -> None:
    async with open_store(redis_url) as store:
        with replies_lost(monkeypatch, "publish") as lost, pytest.raises(PublishUncertain):
            await verb(store)

        assert lost == ["publish"]
        assert len(await store.peek()) == 1
        assert await store.publish(message(b"and on")) is not None


async def test_what_a_claim_took_whose_reply_was_lost_is_recalled(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as store:
        await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])
        token = uuid4()
        with replies_lost(monkeypatch, "claim"), pytest.raises(StoreUnavailable):
            await store.claim([QUEUE], limit=2, lease=LEASE, token=token)

        assert await store.recall([QUEUE], token) == 2

        found = await claim(store)
        assert [(each.body, each.deliveries) for each in found] == [(b"a", 1), (b"b", 1), (b"c", 1)]


async def test_a_claim_that_arrives_after_it_was_handed_back_takes_nothing(redis_url: str) -> None:
    async with open_store(redis_url) as store:
        await store.publish(message())
        token = uuid4()
        assert await store.recall([QUEUE], token) == 0

        late = await store.claim([QUEUE], limit=2, lease=LEASE, token=token)

        assert not late.deliveries
        assert len(await claim(store)) == 1


async def test_a_settlement_whose_reply_was_lost_is_unknown_when_it_is_repeated(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(redis_url) as store:
        await store.publish_batch([message(b"done"), message(b"retried")])
        finished, retried = await claim(store)
        batch = [Settlement(finished, Done()), Settlement(retried, Retry())]
        with replies_lost(monkeypatch, "settle"), pytest.raises(StoreUnavailable):
            await store.settle(batch)

        for settlement in batch:
            settlement.repeated = True
        assert await store.settle(batch) == [WriteResult.UNKNOWN, WriteResult.UNKNOWN]

        assert [(delivery.body, delivery.attempts) for delivery in await claim(store)] == [(b"retried", 1)]


async def test_a_cancelled_caller_does_not_tear_its_claim_in_half(
    redis_server: Redis, redis_url: str
) -> None:
    async with open_store(redis_url) as store:
        await store.publish(message())
        await claim(store, queue="other")
        await asyncio.to_thread(redis_server.pause)
        token = uuid4()
        task = asyncio.ensure_future(store.claim([QUEUE], limit=1, lease=LEASE, token=token))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.to_thread(redis_server.resume)

        # In line behind it, on the same connection: nobody reads the other's reply.
        assert await claim(store, queue="other") == []
        assert await store.recall([QUEUE], token) == 1


# ----------------------------------------------------------------------------------------- scripts


async def test_a_server_that_forgot_the_scripts_is_told_them_again(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message(b"before"))

        async def forgotten() -> None:
            await own.script_flush()

        await forgotten()
        assert await store.publish(message(b"after")) is not None
        await forgotten()
        deliveries = await claim(store)
        assert [delivery.body for delivery in deliveries] == [b"before", b"after"]
        await forgotten()
        assert await store.extend(deliveries, LEASE) == [WriteResult.WRITTEN, WriteResult.WRITTEN]
        await forgotten()
        assert await done(store, deliveries) == [WriteResult.WRITTEN, WriteResult.WRITTEN]


# ------------------------------------------------------------------------------- what it cannot do now


async def test_a_server_without_memory_refuses_a_publish_and_stores_nothing(
    redis_server: Redis, redis_url: str
) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        await store.publish(message(b"before"))
        await own.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(StoreUnavailable, match=r"OutOfMemory|OOM") as refused:
                await store.publish(message(timer_id="t", ordering_key="k"))
            assert not isinstance(refused.value, PublishUncertain)
        finally:
            await own.config_set("maxmemory", "0")

        assert [pending.body for pending in await store.peek()] == [b"before"]
        assert await store.publish(message(b"after", timer_id="t")) is not None
