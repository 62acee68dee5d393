"""Keeper work that outlives its block: it keeps the leases of handler threads that are still running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from nightmail.outcome import WriteResult
from nightmail.store import Extend, FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import LEASE, claim_all, claim_one, message, promptly
from nightmail.testing.conformance.harness import Harness


class KeeperConformance:
    """`run_on_keeper_thread(work, lingers=...)`."""

    @pytest.mark.parametrize("closed", [False, True])
    async def test_work_that_lingers_extends_leases_after_its_block_and_its_store_are_left(
        self, store: FullStore, harness: Harness, clock: ManualClock, closed: bool
    ) -> None:
        await store.publish(message())
        own = await claim_one(store)
        results: list[WriteResult] = []
        enough, ended = threading.Event(), threading.Event()

        async def work(extend: Extend) -> None:
            while not enough.is_set():
                results.extend(await extend([own], LEASE * 10))
                await asyncio.sleep(0.01)
            ended.set()

        leaving = await harness.open()
        async with promptly():
            async with leaving.run_on_keeper_thread(work, lingers=lambda: True):
                pass
            if closed:
                await leaving.close()
            before = len(results)
            await _until(lambda: len(results) >= before + 3)
            enough.set()
            await _until(ended.is_set)
        await leaving.close()

        assert set(results) == {WriteResult.WRITTEN}
        clock.advance(LEASE * 2)
        assert await claim_all(store) == []

    async def test_work_that_is_no_longer_needed_is_cancelled_when_its_block_is_left(
        self, store: FullStore
    ) -> None:
        cancelled = threading.Event()

        async def work(_extend: Extend) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with promptly(), store.run_on_keeper_thread(work, lingers=lambda: False):
            await asyncio.sleep(0.05)

        assert cancelled.is_set()

    async def test_other_work_on_the_same_store_ends_as_ever_beside_what_lingers(
        self, store: FullStore, harness: Harness
    ) -> None:
        enough, ended = threading.Event(), threading.Event()

        async def lingering(_extend: Extend) -> None:
            await _until(enough.is_set)
            ended.set()

        async def other(_extend: Extend) -> None:
            await asyncio.sleep(3600)

        leaving = await harness.open()
        async with promptly():
            async with leaving.run_on_keeper_thread(other):
                async with leaving.run_on_keeper_thread(lingering, lingers=lambda: True):
                    pass
                assert not ended.is_set()
            await leaving.close()
            assert not ended.is_set()
            enough.set()
            await _until(ended.is_set)


async def _until(happened: Callable[[], bool]) -> None:
    """Polls: it happens on, or because of, another thread's event loop, so there is nothing to await."""
    while not happened():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.01)
