"""A server that restarts, connections that die, replies that are lost: nothing is lost, and it goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import uuid4

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.outcome import WriteResult
from nightmail.stores.redis.link import Link
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from testkit.servers.redis import Redis
from tests.stores.redis.support import RedisBackend, client, open_store
from tests.stores.shared.lost_replies import LostReplies, What
from tests.stores.shared.outages import Outages
from tests.stores.support import claim, done, until

pytestmark = pytest.mark.redis


class TestLostReplies(LostReplies):
    carried_out = True

    @asynccontextmanager
    async def reply_lost(self, backend: RedisBackend, what: What) -> AsyncIterator[None]:
        script = "publish" if what == "timer" else what
        with pytest.MonkeyPatch.context() as patch, replies_lost(patch, script) as lost:
            yield
        assert lost == [script]


class TestOutages(Outages):
    async def test_a_frozen_server_is_waited_for_no_longer_than_our_patience(  # type: ignore[override]
        self, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nightmail.stores.redis.lane.PATIENCE_SECONDS", 0.2)
        await super().test_a_frozen_server_is_waited_for_no_longer_than_our_patience(backend)


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


# ----------------------------------------------------------------------------------------- restart


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
        # The connection that died may have carried one more, or one more batch, whose reply was lost.
        assert len(found) - len(told) <= 2
        assert sum(isinstance(error, PublishUncertain) for error in uncertain) <= 1


# ------------------------------------------------------------------------------------ lost replies


async def test_a_claim_that_arrives_after_it_was_handed_back_takes_nothing(redis_url: str) -> None:
    async with open_store(redis_url) as store:
        await store.publish(message())
        token = uuid4()
        assert await store.recall([QUEUE], token) == 0

        late = await store.claim([QUEUE], limit=2, lease=LEASE, token=token)

        assert not late.deliveries
        assert len(await claim(store)) == 1


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

        # In line behind it, on the same connection: it does not read the other's reply.
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
