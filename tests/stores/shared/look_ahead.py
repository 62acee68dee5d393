"""What an idle process is told of many queues at once: never later than a claim would find something."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import uuid4

from nightmail.outcome import Retry
from nightmail.store import LooksAhead
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import MINUTE, SECOND, bodies, claim_all, message, settle_one
from tests.stores.shared.backend import Backend

NOW: Final = timedelta(0)
QUEUES: Final = ("a", "b", "c")


class LookAhead:
    """For stores that look ahead."""

    async def test_idle_workers_share_the_looks_of_this_store(self, backend: Backend) -> None:
        assert isinstance(backend.store(), LooksAhead)

    async def test_a_look_ahead_tells_of_each_queue_when_something_is_due(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.opened(clock=clock) as store:
            assert await store.look_ahead([]) == await store.look_ahead(QUEUES) == {}

            await store.publish(message(queue="a"))
            await store.publish(message(queue="b", due=MINUTE, priority=3))
            await store.publish(message(queue="b", due=MINUTE - SECOND, ordering_key="key"))
            assert await store.look_ahead(QUEUES) == {"a": NOW, "b": MINUTE - SECOND}

            clock.advance(SECOND)
            assert await store.look_ahead(QUEUES) == {"a": NOW, "b": MINUTE - SECOND * 2}

    async def test_a_look_ahead_takes_nothing_and_expects_a_retry(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.opened(clock=clock) as store:
            await store.publish(message(queue="a"))
            await store.look_ahead(["a"])
            (taken,) = await claim_all(store, "a")
            await settle_one(store, taken, Retry(SECOND * 7))

            assert await store.look_ahead(["a"]) == {"a": SECOND * 7}
            clock.advance(SECOND * 8)
            assert await store.look_ahead(["a"]) == {"a": NOW}

    async def test_a_look_ahead_sees_the_first_due_time_of_every_priority(self, backend: Backend) -> None:
        queues = [f"first at {priority}" for priority in range(10)]
        async with backend.opened(clock=ManualClock()) as store:
            for priority, queue in enumerate(queues):
                await store.publish(message(queue=queue, due=MINUTE, priority=(priority + 1) % 10))
                await store.publish(message(queue=queue, due=SECOND, priority=priority))

            assert await store.look_ahead(queues) == dict.fromkeys(queues, SECOND)

    async def test_a_look_ahead_sees_a_message_with_a_key_that_has_become_due(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.opened(clock=clock) as store:
            await store.publish(message(b"later", queue="a", ordering_key="key", due=SECOND))
            clock.advance(SECOND)

            assert await store.look_ahead(["a"]) == {"a": NOW}
            assert bodies(await claim_all(store, "a")) == [b"later"]

    async def test_what_is_due_is_due_by_the_servers_clock(self, backend: Backend) -> None:
        async with backend.opened() as store:
            await store.publish(message(queue="a", due=MINUTE))

            assert MINUTE - SECOND * 30 < (await store.look_ahead(["a"]))["a"] <= MINUTE


class LookAheadPastWhatWaits(LookAhead):
    """For those that also tell when a lease or a pause ends, and who waits in line; others leave that to a claim."""

    async def test_a_look_ahead_expects_the_end_of_a_lease(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.opened(clock=clock) as store:
            await store.publish_batch([message(queue="a"), message(queue="a")])
            for lease in (SECOND * 9, SECOND * 6):
                await store.claim(["a"], limit=1, lease=lease, token=uuid4())

            clock.advance(SECOND)
            assert await store.look_ahead(["a"]) == {"a": SECOND * 5}
            clock.advance(SECOND * 5)
            assert await store.look_ahead(["a"]) == {"a": NOW}
            assert len(await claim_all(store, "a", lease=MINUTE)) == 1

    async def test_a_look_ahead_passes_over_what_waits_in_line(self, backend: Backend) -> None:
        async with backend.opened(clock=ManualClock()) as store:
            await store.publish_batch([message(queue="a", ordering_key="key")] * 3)
            assert await store.look_ahead(["a"]) == {"a": NOW}

            (taken,) = await claim_all(store, "a", lease=MINUTE)
            assert await store.look_ahead(["a"]) == {"a": MINUTE}

            # A retry holds its key: those behind it wait for it too.
            await settle_one(store, taken, Retry(SECOND * 7))
            assert await store.look_ahead(["a"]) == {"a": SECOND * 7}

    async def test_a_look_ahead_expects_the_end_of_a_pause_and_nothing_before(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.opened(clock=clock) as store:
            for queue in QUEUES:
                await store.publish(message(queue=queue))
            await store.pause("a", until=MINUTE, by="me")
            await store.pause("b", by="me")

            assert await store.look_ahead(QUEUES) == {"a": MINUTE, "c": NOW}
            clock.advance(MINUTE)
            assert await store.look_ahead(QUEUES) == {"a": NOW, "c": NOW}
