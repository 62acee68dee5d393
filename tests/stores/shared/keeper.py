"""Work on the keeper's thread, beside the event loop: it ends with its block, its store or its caller."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.outcome import WriteResult
from nightmail.store import Extend, FullStore
from nightmail.testing.conformance.build import HOUR, message
from tests.stores.shared.backend import Backend
from tests.stores.support import claim, until


def keepers() -> int:
    """How many of our threads there are."""
    return sum(thread.name == "nightmail-keeper" for thread in threading.enumerate())


async def forever(_: Extend) -> None:
    await asyncio.Event().wait()


def our_threads() -> set[threading.Thread]:
    """All that stores have started."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("nightmail")}


class Slow:
    """Work that takes its time to end, until told to go on."""

    def __init__(self) -> None:
        self._here, self.begun, self.ending = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._there: asyncio.AbstractEventLoop | None = None
        self._enough = asyncio.Event()

    async def work(self, _: Extend) -> None:
        self._there = asyncio.get_running_loop()
        self._here.call_soon_threadsafe(self.begun.set)
        try:
            await asyncio.Event().wait()
        finally:
            with suppress(RuntimeError):  # The event loop may have ended.
                self._here.call_soon_threadsafe(self.ending.set)
            await self._enough.wait()

    def go_on(self) -> None:
        assert self._there is not None
        with suppress(RuntimeError):
            self._there.call_soon_threadsafe(self._enough.set)


async def run_slowly(store: FullStore, work: Slow, leave: asyncio.Event) -> None:
    async with store.run_on_keeper_thread(work.work):
        await leave.wait()


class KeeperThread:
    """For stores whose keeper has a thread of its own."""

    async def test_leases_are_renewed_while_the_event_loop_is_blocked(self, backend: Backend) -> None:
        async with backend.opened() as store:
            await store.publish(message())
            deliveries = await claim(store)
            results: list[WriteResult] = []
            begun, renewed = threading.Event(), threading.Event()

            async def keep(extend: Extend) -> None:
                await asyncio.to_thread(begun.wait)
                results.extend(await extend(deliveries, HOUR))
                renewed.set()
                await asyncio.Event().wait()

            async with store.run_on_keeper_thread(keep):
                begun.set()
                # No await: nothing else runs on this loop meanwhile.
                assert renewed.wait(20)

            assert results == [WriteResult.WRITTEN]

    async def test_the_thread_ends_with_the_last_who_uses_it(self, backend: Backend) -> None:
        async with backend.opened() as store:
            async with store.run_on_keeper_thread(forever):
                async with store.run_on_keeper_thread(forever):
                    assert keepers() == 1
                assert keepers() == 1
            assert keepers() == 0

    async def test_work_ends_when_its_caller_is_cancelled_before_it_has_begun(self, backend: Backend) -> None:
        begun, ended = threading.Event(), threading.Event()

        async def wait(_: Extend) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async def enter(store: FullStore) -> None:
            async with store.run_on_keeper_thread(wait):
                await asyncio.Event().wait()

        async with backend.opened() as store:
            task = asyncio.create_task(enter(store))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

            assert task.cancelled()
            assert begun.is_set() == ended.is_set()
            assert keepers() == 0

    async def test_closing_waits_for_the_thread_though_another_caller_is_already_stopping_it(
        self, backend: Backend
    ) -> None:
        async with backend.opened() as store:
            slow, leave, left = Slow(), asyncio.Event(), list[int]()
            leaving = asyncio.create_task(run_slowly(store, slow, leave))
            await slow.begun.wait()
            leave.set()
            await slow.ending.wait()

            closing = asyncio.create_task(store.close())
            closing.add_done_callback(lambda _: left.append(keepers()))
            for _ in range(50):
                await asyncio.sleep(0)
            slow.go_on()
            async with asyncio.timeout(10):
                await asyncio.gather(leaving, closing)

        assert left == [0]

    async def test_a_caller_that_begins_or_ends_work_while_the_store_is_closed_is_not_left_waiting(
        self, backend: Backend
    ) -> None:
        async with backend.opened() as store:
            slow, leave = Slow(), asyncio.Event()
            leaving = asyncio.create_task(run_slowly(store, slow, leave))
            await slow.begun.wait()
            late = store.run_on_keeper_thread(Slow().work)
            closing = asyncio.create_task(store.close())
            await slow.ending.wait()

            leave.set()
            beginning = asyncio.create_task(late.__aenter__())
            slow.go_on()
            async with asyncio.timeout(10):
                await asyncio.gather(leaving, closing)
                with pytest.raises(StoreUnavailable, match="closed"):
                    await beginning

        assert keepers() == 0

    async def test_a_close_that_is_given_up_leaves_no_thread_behind(self, backend: Backend) -> None:
        before = our_threads()
        async with backend.opened() as store:
            slow, leave = Slow(), asyncio.Event()
            working = asyncio.create_task(run_slowly(store, slow, leave))
            await slow.begun.wait()
            closing = asyncio.create_task(store.close())
            await slow.ending.wait()

            # As a broker does once the time for it is over.
            closing.cancel()
            await asyncio.wait([closing], timeout=10)
            slow.go_on()

            await until(lambda: our_threads() <= before)
            leave.set()
            await working

    async def test_an_event_loop_that_ends_before_the_work_leaves_no_thread_behind(
        self, backend: Backend
    ) -> None:
        store, works = backend.store(), list[Slow]()

        async def program() -> None:
            leave = asyncio.Event()
            await store.open()
            works.extend([Slow(), Slow()])
            leaving = [asyncio.create_task(run_slowly(store, slow, leave)) for slow in works]
            await asyncio.gather(*(slow.begun.wait() for slow in works))
            leave.set()
            await works[0].ending.wait()
            assert not any(task.done() for task in leaving)

        await asyncio.to_thread(asyncio.run, program())
        for slow in works:
            slow.go_on()

        await until(lambda: not keepers())
        await store.close()
