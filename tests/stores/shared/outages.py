"""A server that restarts, hangs or is away: nothing is lost, no caller waits forever, and it goes on by itself."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any, Final

import pytest

from nightmail import OutboxBroker
from nightmail.engine.worker import Worker
from nightmail.errors import PublishUncertain, StoreUnavailable
from nightmail.outcome import Done, WriteResult
from nightmail.store import Extend, FullStore
from nightmail.testing.conformance.build import LEASE, QUEUE, bodies, message
from tests.broker.support import Heard
from tests.stores.shared.backend import ServerBackend
from tests.stores.shared.forking import check_forking
from tests.stores.support import claim, done, until
from tests.unit.support import Handler, Seen, at_work

LONGEST: Final = timedelta(seconds=1.5)
"""How long a worker waits before it tries again, at most."""


def looks_every(store: FullStore, seconds: int) -> bool:
    """How often an idle worker looks by itself: every second while no wake-up can reach it, else every five."""
    return store.look_interval.total_seconds() == seconds


async def answers(store: FullStore) -> bool:
    try:
        await store.ping()
    except StoreUnavailable:
        return False
    return True


class Outages:
    """For stores on a server."""

    async def test_a_server_that_was_killed_and_started_again_has_everything_and_is_used_again(
        self, backend: ServerBackend
    ) -> None:
        async with backend.opened() as store:
            await store.publish_batch([message(b"a"), message(b"b"), message(b"c")])
            held = await claim(store, limit=2)
            with store.listen([QUEUE]) as bell:
                await until(lambda: looks_every(store, 5))

                await asyncio.to_thread(backend.server.kill)
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
                await until(lambda: looks_every(store, 1))
                bell.clear()
                await asyncio.to_thread(backend.server.start)

                await until(lambda: answers(store))
                assert await bell.wait(40)
                await until(lambda: looks_every(store, 5))
            assert await done(store, held) == [WriteResult.WRITTEN, WriteResult.WRITTEN]
            assert bodies(await claim(store)) == [b"c"]

    async def test_a_server_that_was_restarted_while_nothing_was_asked_is_not_noticed(
        self, backend: ServerBackend
    ) -> None:
        async with backend.opened() as store:
            await store.publish(message(b"before"))
            await claim(store, queue="other")

            await asyncio.to_thread(backend.server.restart)

            assert await store.publish(message(b"after")) is not None
            deliveries = await claim(store)
            assert bodies(deliveries) == [b"before", b"after"]
            assert await done(store, deliveries) == [WriteResult.WRITTEN, WriteResult.WRITTEN]

    async def test_a_publish_that_was_never_sent_is_not_uncertain(self, backend: ServerBackend) -> None:
        async with backend.opened() as store:
            await asyncio.to_thread(backend.server.stop)
            try:
                for attempt in (message(), message(timer_id="t")):
                    with pytest.raises(StoreUnavailable) as raised:
                        await store.publish(attempt)
                    assert not isinstance(raised.value, PublishUncertain)
            finally:
                await asyncio.to_thread(backend.server.start)

    async def test_a_worker_goes_on_soon_after_its_server_is_back(self, backend: ServerBackend) -> None:
        seen = Seen()
        async with (
            backend.opened() as store,
            at_work(Worker(store, Handler(), queues=[QUEUE], observer=seen)),
        ):
            first = await store.publish(message(b"before"))
            await seen.until(lambda: seen.of(first or 0) == [Done()])

            # Away for long enough that the worker has become as patient as it gets.
            await asyncio.to_thread(backend.server.kill)
            await seen.until(lambda: len(seen.outages) >= 7)
            assert max(retry_in for _, retry_in in seen.outages) <= LONGEST
            await asyncio.to_thread(backend.server.start)  # Returns when it answers.
            failed = len(seen.outages)
            second = await store.publish(message(b"after"))
            await seen.until(lambda: seen.of(second or 0) == [Done()])

        # No more than what was under way when it came back: the very next try has gone well.
        assert len(seen.outages) - failed <= 1

    # ---------------------------------------------------------------------------- a server that hangs

    async def test_a_frozen_server_is_waited_for_no_longer_than_our_patience(
        self, backend: ServerBackend
    ) -> None:
        async with backend.opened() as store:
            await claim(store)
            await asyncio.to_thread(backend.server.pause)
            try:
                async with asyncio.timeout(30):
                    with pytest.raises(StoreUnavailable):
                        await claim(store)
            finally:
                await asyncio.to_thread(backend.server.resume)

            # It has some seconds to make up for, and on a busy machine may be slow to answer the first connection.
            await until(lambda: answers(store))
            assert await claim(store) == []

    async def test_a_store_is_closed_soon_though_the_server_hangs(self, backend: ServerBackend) -> None:
        async with backend.opened() as store:
            await store.publish(message())
            held = await claim(store)
            begun = asyncio.Event()
            loop = asyncio.get_running_loop()

            async def keep(extend: Extend) -> None:
                loop.call_soon_threadsafe(begun.set)
                while True:
                    await extend(held, LEASE)
                    await asyncio.sleep(0.01)

            async def work() -> None:
                async with store.run_on_keeper_thread(keep):
                    await asyncio.Event().wait()

            with store.listen([QUEUE]):
                worker = asyncio.create_task(work())
                await begun.wait()
                await asyncio.to_thread(backend.server.pause)
                try:
                    verbs = [
                        asyncio.ensure_future(verb)
                        for verb in (
                            store.publish(message()),
                            store.publish(message(timer_id="t")),
                            claim(store),
                            done(store, held),
                            store.stats(),
                        )
                    ]
                    await asyncio.sleep(0.1)
                    # Two seconds are promised; the rest is for a machine that is busy.
                    async with asyncio.timeout(6):
                        await store.close()
                    worker.cancel()
                    ended: list[Any] = await asyncio.gather(*verbs, worker, return_exceptions=True)
                finally:
                    await asyncio.to_thread(backend.server.resume)
            assert all(isinstance(each, StoreUnavailable | asyncio.CancelledError) for each in ended), ended

    async def test_a_server_that_hangs_does_not_hang_the_shutdown(self, backend: ServerBackend) -> None:
        running = asyncio.Event()
        broker = OutboxBroker(
            backend.url, create_tables=True, logger=None, observer=Heard(), graceful_timeout=1.0
        )

        @broker.subscriber("q")
        async def take(body: str) -> None:
            running.set()
            await asyncio.Event().wait()

        @broker.subscriber("idle")
        async def idle(body: str) -> None: ...

        await broker.start()
        await broker.publish("a", "q")
        async with asyncio.timeout(30):
            await running.wait()
        await asyncio.to_thread(backend.server.pause)
        try:
            began = time.monotonic()
            await broker.stop()
            took = time.monotonic() - began
        finally:
            await asyncio.to_thread(backend.server.resume)
        # Promised are the grace period and 5 s, at most; the rest is for a machine that is slow. The exact bound is
        # tested on virtual time, in tests/unit/test_bounded_stop.py: here real threads and sockets have to end.
        assert took < 12
        # What was left behind ends now that it is answered.
        if left_behind := asyncio.all_tasks() - {asyncio.current_task()}:
            _, pending = await asyncio.wait(left_behind, timeout=30)
            assert not pending

    # ------------------------------------------------------------------------------- other processes

    def test_a_forked_child_is_told_to_open_the_store_itself(self, backend: ServerBackend) -> None:
        check_forking(backend.url)
