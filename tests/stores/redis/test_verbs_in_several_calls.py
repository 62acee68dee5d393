"""Verbs of several calls are carried out whole, also for a cancelled caller; and large messages are taken in parts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.limits import CLAIM_BYTES
from nightmail.outcome import Done
from nightmail.store import Settlement
from nightmail.stores.redis import timers
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from tests.stores.redis.support import open_store
from tests.stores.support import until

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
