"""A server whose memory is full: publishes are refused, and everything that makes room goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.outcome import Dead, Release, Retry, WriteResult
from nightmail.records import DeadFilter
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore, scripts
from nightmail.stores.redis.link import Link
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, MINUTE, QUEUE, message
from nightmail.testing.conformance.workers import a_report
from tests.stores.redis.support import client, open_store
from tests.stores.support import claim, done

pytestmark = pytest.mark.redis


@asynccontextmanager
async def full(own: Any) -> AsyncIterator[None]:
    await own.config_set("maxmemory", "1mb")
    try:
        yield
    finally:
        await own.config_set("maxmemory", "0")


async def test_leases_are_taken_renewed_and_settled_while_the_memory_is_full(redis_url: str) -> None:
    async with client(redis_url) as own:
        async with open_store(redis_url) as publisher:
            await publisher.publish_batch([message(b"%d" % number) for number in range(6)])
            await publisher.publish(message(b"timer", timer_id="t"))
        # A process that has asked the server nothing yet.
        async with full(own), open_store_as_it_is(redis_url) as store:
            with pytest.raises(StoreUnavailable, match=r"OutOfMemory|OOM") as refused:
                await store.publish(message())
            assert not isinstance(refused.value, PublishUncertain)

            found = await claim(store, limit=5)
            assert len(found) == 5
            assert await store.extend(found, HOUR) == [WriteResult.WRITTEN] * 5
            batch = [
                Settlement(found[0], Retry()),
                Settlement(found[1], Release()),
                Settlement(found[2], Dead("test")),
            ]
            assert await store.settle(batch) == [WriteResult.WRITTEN] * 3
            assert await done(store, found[3:]) == [WriteResult.WRITTEN] * 2
            letters = await store.claim_dead([QUEUE], limit=1, lease=LEASE, token=uuid4())
            assert await store.settle([Settlement(each, Retry()) for each in letters.deliveries]) == [
                WriteResult.WRITTEN
            ]
            assert await store.cancel(QUEUE, "t")
            token = uuid4()
            await store.claim([QUEUE], limit=1, lease=LEASE, token=token)
            assert await store.recall([QUEUE], token) == 1
            assert await store.purge(DeadFilter(), limit=1) == 1
            assert await store.cancel_all(QUEUE) == 3


async def test_queues_are_paused_probed_and_resumed_while_the_memory_is_full(redis_url: str) -> None:
    clock = ManualClock()
    async with client(redis_url) as own:
        async with open_store(redis_url, clock=clock) as publisher:
            await publisher.publish_batch([message(b"%d" % number) for number in range(3)])
        # A worker, which has published nothing and listed no queue.
        async with full(own), open_store_as_it_is(redis_url, clock=clock) as store:
            await store.report(a_report())
            await store.pause(QUEUE, by="breaker", until=MINUTE, automatic=True)
            assert await claim(store) == []
            clock.advance(MINUTE)
            probe = await store.claim([QUEUE], limit=5, lease=LEASE, token=uuid4())
            assert (len(probe.deliveries), probe.probe) == (1, True)
            assert await store.request_stop(probe.deliveries[0].id, by="ann")
            assert await store.extend(probe.deliveries, HOUR) == [WriteResult.STOP]
            assert await store.resume(QUEUE, automatic=True)
            assert len(await claim(store)) == 2


@asynccontextmanager
async def open_store_as_it_is(url: str, **options: Any) -> AsyncIterator[Any]:
    store = RedisStore(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_a_server_that_knows_no_flags_of_scripts_is_told_them_without(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a server before 7.0 answers: the first line is no Lua.
    monkeypatch.setattr(scripts, "_FLAGS", "#!luaaa flags=allow-oom\n")
    monkeypatch.setattr(
        "nightmail.stores.redis.link.is_unknown_syntax", lambda answer: "engine" in str(answer).lower()
    )
    scripts.script.cache_clear()
    sent: list[str] = []
    ask = Link.ask

    async def noted(link: Link, *commands: Any) -> Any:
        sent.append(str(commands[0][0]))
        return await ask(link, *commands)

    try:
        async with open_store(redis_url) as store:
            await store.publish(message())
            monkeypatch.setattr(Link, "ask", noted)
            (found,) = await claim(store)
            # By digest, in full, and both again without the flags; from then on at once without.
            assert [each for each in sent if each.startswith("EVAL")] == [
                "EVALSHA",
                "EVAL",
                "EVALSHA",
                "EVAL",
            ]
            sent.clear()
            assert await claim(store) == []
            assert sent == ["EVALSHA"]
            assert await done(store, [found]) == [WriteResult.WRITTEN]
    finally:
        scripts.script.cache_clear()
