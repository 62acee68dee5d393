"""Verbs of several calls are carried out whole, also for a cancelled caller; and large messages are taken in parts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from typing import Any
from uuid import uuid4

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.limits import CLAIM_BYTES
from nightmail.outcome import Done
from nightmail.store import Settlement
from nightmail.stores.redis import RedisStore, timers
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import HOUR, LEASE, QUEUE, SECOND, message
from tests.stores.redis.support import client, open_store
from tests.stores.support import claim, settle, until

pytestmark = pytest.mark.redis

HALF_A_MEGABYTE = b"x" * 512 * 1024


@pytest.mark.parametrize("turns", range(1, 30, 3))
async def test_cancelling_many_messages_is_not_torn_by_cancelling_the_caller(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(timers, "AT_ONCE", 10)
    async with open_store(redis_url) as store:
        await store.publish_batch([message() for _ in range(60)])
        await store.cancel(QUEUE, "warm")

        task = asyncio.ensure_future(store.cancel_all(QUEUE))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        async def all_gone() -> bool:
            return await store.peek() == []

        await until(all_gone)


@pytest.mark.parametrize("turns", range(1, 16, 3))
async def test_recalling_many_messages_is_not_torn_by_cancelling_the_caller(
    redis_url: str, turns: int
) -> None:
    async with open_store(redis_url) as store:
        token = uuid4()
        await store.publish_batch([message() for _ in range(2_500)])
        await store.claim([QUEUE], limit=2_500, lease=LEASE, token=token)

        task = asyncio.ensure_future(store.recall([QUEUE], token))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        async def none_runs() -> bool:
            return (await store.stats())[QUEUE].running == 0

        await until(none_runs)


@contextmanager
def after_each_call(store: RedisStore, work: Callable[[int], Awaitable[None]]) -> Iterator[None]:
    """Within the block this is done after each call for claims, which are counted from 1."""
    lane: Any = store._runtime.claim
    run, numbers = lane.run, count(1)

    async def and_then(call: object) -> object:
        answer = await run(call)
        await work(next(numbers))
        return answer

    lane.run = and_then
    try:
        yield
    finally:
        lane.run = run


async def test_no_call_of_a_recall_looks_at_more_than_a_thousand_leases(redis_url: str) -> None:
    async with open_store(redis_url) as store, client(redis_url) as own:
        token = uuid4()
        await store.publish_batch([message() for _ in range(4_500)])
        await store.claim([QUEUE], limit=1_700, lease=LEASE, token=uuid4())
        await store.claim([QUEUE], limit=1_500, lease=LEASE, token=token)
        await store.claim([QUEUE], limit=1_300, lease=LEASE, token=uuid4())
        read = [await lookups(own)]

        async def note(_: int) -> None:
            read.append(await lookups(own))

        with after_each_call(store, note):
            assert await store.recall([QUEUE], token) == 1_500

        assert [after - before for before, after in pairwise(read)] == [1000, 1000, 1000, 1000, 500]


async def lookups(own: Any) -> int:
    """How many messages were read so far."""
    return int((await own.info("commandstats"))["cmdstat_hmget"]["calls"])


# Expired leases come last: a recall would find there what it has passed over, and only leases that hold show it.
@pytest.mark.parametrize("expires", [False, True], ids=["leases that hold", "leases that expire"])
async def test_a_recall_misses_nothing_that_moves_between_its_calls(redis_url: str, expires: bool) -> None:
    clock = ManualClock()
    async with open_store(redis_url, clock=clock) as store, open_store(redis_url, clock=clock) as other:
        token = uuid4()
        await store.publish_batch([message(b"%d" % number) for number in range(4_200)])
        others = await claim(other, limit=1_200)
        clock.advance(SECOND)
        await store.claim([QUEUE], limit=3_000, lease=LEASE, token=token)

        called = 0

        async def disturb(call: int) -> None:
            nonlocal called
            called = call
            if call == 1:
                # Those that it has looked at are gone, or come later.
                await settle(other, others[:600], Done())
                await other.extend(others[600:1_100], HOUR)
            if call == 2 and expires:
                # Those that it has not looked at yet have expired, and are offered again.
                clock.advance(LEASE)
                for _ in range(3):
                    assert len(await claim(other, limit=1)) == 1

        with after_each_call(store, disturb):
            handed_back = await store.recall([QUEUE], token)

        assert called > 3
        assert handed_back == 3_000
        left = await claim(store, limit=5_000)
        assert len(left) == (3_097 if expires else 3_000)
        assert {each.deliveries for each in left if int(each.body) >= 1_200} == {1}


async def test_what_fails_after_its_caller_was_cancelled_is_no_complaint_of_the_event_loops(
    redis_url: str,
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with open_store(redis_url) as store:
        assert store._opened is not None
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def work(*_: object) -> None:
            begun.set()
            await go_on.wait()
            raise StoreUnavailable

        opened = store._opened
        runs: list[Callable[[], Coroutine[Any, Any, None]]] = [
            lambda: opened.to_the_end.run(work()),
            lambda: opened.claim.run_at(None, work),
        ]
        for run in runs:
            begun.clear()
            go_on.clear()
            caller = asyncio.ensure_future(run())
            await begun.wait()
            caller.cancel()
            await asyncio.wait([caller])
            go_on.set()
            for _ in range(5):
                await asyncio.sleep(0)
        gc.collect()

        assert complaints == []


async def test_large_messages_are_drained_in_claims_of_so_many_bytes(redis_url: str) -> None:
    async with open_store(redis_url) as store:
        for _ in range(2):
            await store.publish_batch([message(HALF_A_MEGABYTE) for _ in range(40)])
        sizes: list[int] = []
        full = True
        while full:
            claimed = await store.claim([QUEUE], limit=1885, lease=LEASE, token=uuid4())
            sizes.append(sum(len(each.body) for each in claimed.deliveries))
            full = claimed.full
            await store.settle([Settlement(each, Done()) for each in claimed.deliveries])

        assert sum(sizes) == 80 * len(HALF_A_MEGABYTE)
        assert max(sizes) <= CLAIM_BYTES
        assert await store.stats() == {}
