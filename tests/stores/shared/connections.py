"""Few connections, whatever the number of subscribers, opened when they are needed and closed with the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from nightmail.errors import StoreUnavailable
from nightmail.message import Delivery
from nightmail.store import Extend, FullStore
from nightmail.testing.conformance.build import LEASE, QUEUE, message
from tests.counters.baseline import more
from tests.stores.shared.backend import ServerBackend
from tests.stores.shared.keeper import Slow, keepers, run_slowly
from tests.stores.support import claim, done, opened, until


async def subscriber(store: FullStore, deliveries: Sequence[Delivery], ready: asyncio.Event) -> None:
    """Listens, claims, settles, publishes, and has its leases renewed beside."""
    loop = asyncio.get_running_loop()

    async def keep(extend: Extend) -> None:
        await extend(deliveries, LEASE)
        loop.call_soon_threadsafe(ready.set)
        await asyncio.Event().wait()

    with store.listen([QUEUE]):
        async with store.run_on_keeper_thread(keep):
            await ready.wait()
            await store.publish(message())
            await done(store, await claim(store))
            await asyncio.Event().wait()


class Connections:
    """For stores on a server."""

    async def test_twenty_subscribers_need_no_more_connections_than_the_store_says(
        self, backend: ServerBackend
    ) -> None:
        async with backend.opened() as store:
            await store.publish_batch([message() for _ in range(20)])
            events = [asyncio.Event() for _ in range(20)]
            subscribers = [
                asyncio.create_task(subscriber(store, [delivery], ready))
                for delivery, ready in zip(await claim(store, limit=20), events, strict=True)
            ]
            await asyncio.gather(*(ready.wait() for ready in events))
            declared, found = int(store.capabilities.connections), 0

            async def all_are_there() -> bool:
                nonlocal found
                found = await backend.connections()
                return found == declared

            # Twice: one that is too many may be opened last.
            for _ in range(2):
                await asyncio.gather(*(store.publish(message(timer_id=f"t{n}")) for n in range(20)))
                await asyncio.gather(*(store.stats() for _ in range(5)))
                with suppress(TimeoutError):
                    await until(all_are_there)
            assert found >= declared, f"connections {declared} -> {found}: it declares more than it opens"
            assert found == declared, more("connections", declared, found)

            for each in subscribers:
                each.cancel()
            await asyncio.gather(*subscribers, return_exceptions=True)
        await until(lambda: at_most(0, backend))

    async def test_nothing_is_connected_before_it_is_needed(self, backend: ServerBackend) -> None:
        async with backend.opened():
            pass
        async with opened(backend.store(), migrate=False) as store:
            await until(lambda: at_most(0, backend))

            await store.publish(message())

            assert await backend.connections() == 1

    async def test_a_closed_store_leaves_no_connection_and_no_thread_behind(
        self, backend: ServerBackend
    ) -> None:
        async with backend.opened() as store:
            await store.publish(message())
            ready = asyncio.Event()
            worker = asyncio.create_task(subscriber(store, await claim(store), ready))
            await ready.wait()

            # Though a subscriber is still at work.
            await store.close()

            assert keepers() == 0
            await until(lambda: at_most(0, backend))
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            with pytest.raises(StoreUnavailable, match="not open"):
                await store.ping()

    async def test_a_close_that_is_given_up_leaves_no_connection_and_no_thread_behind(
        self, backend: ServerBackend
    ) -> None:
        async with backend.opened() as store:
            await store.publish(message())
            slow, ready, leave = Slow(), asyncio.Event(), asyncio.Event()
            workers = [
                asyncio.create_task(subscriber(store, await claim(store), ready)),
                asyncio.create_task(run_slowly(store, slow, leave)),
            ]
            await asyncio.gather(ready.wait(), slow.begun.wait())
            closing = asyncio.create_task(store.close())
            await slow.ending.wait()

            # As a broker does once the time for it is over.
            closing.cancel()
            await asyncio.wait([closing])

            assert closing.cancelled()
            # The keeper's own is open until its work has ended.
            await until(lambda: at_most(1, backend))
            slow.go_on()
            await until(lambda: at_most(0, backend))
            await until(lambda: not keepers())
            for each in workers:
                each.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def test_who_waited_when_the_store_was_closed_opens_no_connection(
        self, backend: ServerBackend
    ) -> None:
        async with backend.opened() as store:
            await store.publish(message())
            bell = store.listen([QUEUE])
            waiting = [asyncio.create_task(claim(store)) for _ in range(5)]
            published = [asyncio.create_task(store.publish(message(timer_id=f"t{n}"))) for n in range(5)]
            await asyncio.sleep(0)

            await store.close()
            with bell:
                results = await asyncio.gather(*waiting, *published, return_exceptions=True)

            refused = [result for result in results if isinstance(result, BaseException)]
            assert all(isinstance(error, StoreUnavailable) for error in refused)
            await until(lambda: at_most(0, backend))


async def at_most(number: int, backend: ServerBackend) -> bool:
    return await backend.connections() <= number
