"""Cancellation: a verb is carried out entirely or not at all, wherever its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from nightmail.outcome import Dead, Done, Retry
from nightmail.records import DeadFilter
from nightmail.store import FullStore, Settlement
from nightmail.testing.conformance.build import LEASE, QUEUE, fresh_token, message, timer
from nightmail.testing.conformance.fixtures import StoreFixtures
from nightmail.testing.conformance.harness import Harness

QUEUES: Final = [QUEUE, "refunds", "mail", "parcels", "letters"]
"""Enough queues that a store which shards by queue has them on several shards."""
EACH: Final = 3
MOST_STEPS: Final = 40
ALL: Final = len(QUEUES) * EACH


@dataclass(slots=True)
class _CancelledAt:
    """A verb, cancelled at its n-th await."""

    verb: Coroutine[Any, Any, Any]
    step: int
    steps: int = field(default=0, init=False)

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        inner = self.verb.__await__()
        resume: Callable[[Any], Any] = inner.send
        given: Any = None
        while True:
            try:
                waits_for = resume(given)
            except StopIteration as finished:
                return finished.value
            self.steps += 1
            if self.steps == self.step:
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                given = yield waits_for
                resume = inner.send
            except BaseException as error:  # noqa: BLE001 - the verb decides what to do with it
                resume, given = inner.throw, error


async def cancelled_at(verb: Coroutine[Any, Any, Any], step: int) -> bool:
    """Run this and cancel it at its n-th await; whether it got that far."""
    waiting = _CancelledAt(verb, step)

    async def run() -> None:
        await waiting

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    return waiting.steps >= step


Verb = Callable[[FullStore], Coroutine[Any, Any, Any]]
Look = Callable[[FullStore], Awaitable[int]]


class CancellationConformance(StoreFixtures):
    """Each verb is cancelled at each of its steps, and its store closed: what is left is looked at by another."""

    async def all_or_nothing(
        self, harness: Harness, scene: Callable[[FullStore], Awaitable[Verb]], look: Look, allowed: set[int]
    ) -> None:
        """At every step, the number found afterwards is one of those allowed."""
        for step in range(1, MOST_STEPS):
            store = await harness.open()
            try:
                verb = await scene(store)
                cancelled = await cancelled_at(verb(store), step)
            finally:
                # What was begun is finished or abandoned before this returns.
                await store.close()
            other = await harness.open()
            try:
                found = await look(other)
                assert found in allowed, f"cancelled at step {step}: {found} is neither all nor nothing"
                # Leases expire, so that what is left can be removed and the next step begins as this one did.
                harness.clock.advance(4 * LEASE)
                await empty(other)
            finally:
                await other.close()
            if not cancelled:
                return

    async def test_a_cancelled_publish_stored_its_message_or_not(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            return lambda store: store.publish(message(b"new"))

        await self.all_or_nothing(harness, scene, waiting, {0, 1})

    async def test_a_cancelled_publish_of_a_timer_stored_it_or_not(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            await store.publish(timer("reminder", b"old"))
            return lambda store: store.publish(timer("reminder", b"new", on_conflict="replace"))

        await self.all_or_nothing(harness, scene, waiting, {1})

    async def test_a_cancelled_batch_is_stored_whole_or_not(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            return lambda store: store.publish_batch(
                [message(b"new", queue=queue) for queue in QUEUES for _ in range(EACH)]
            )

        await self.all_or_nothing(harness, scene, waiting, {0, ALL})

    async def test_a_cancelled_claim_can_be_handed_back_whole(self, harness: Harness) -> None:
        token = fresh_token()

        async def scene(store: FullStore) -> Verb:
            await fill(store)
            nonlocal token
            token = fresh_token()
            return lambda store: store.claim(QUEUES, limit=100, lease=LEASE, token=token)

        async def look(store: FullStore) -> int:
            handed_back = await store.recall(QUEUES, token)
            assert handed_back in (0, ALL)
            found = await store.claim(QUEUES, limit=100, lease=LEASE, token=fresh_token())
            assert {each.deliveries for each in found.deliveries} == {1}
            return len(found.deliveries)

        await self.all_or_nothing(harness, scene, look, {ALL})

    async def test_a_cancelled_recall_hands_all_back_or_nothing(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            await fill(store)
            token = fresh_token()
            await store.claim(QUEUES, limit=100, lease=LEASE, token=token)
            return lambda store: store.recall(QUEUES, token)

        await self.all_or_nothing(harness, scene, running, {0, ALL})

    async def test_a_cancelled_settlement_is_written_whole_or_not(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            await fill(store)
            found = await store.claim(QUEUES, limit=100, lease=LEASE, token=fresh_token())
            batch = [Settlement(each, Done()) for each in found.deliveries]
            return lambda store: store.settle(batch)

        await self.all_or_nothing(harness, scene, running, {0, ALL})

    async def test_a_cancelled_settlement_of_failures_is_written_whole_or_not(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            await fill(store)
            found = await store.claim(QUEUES, limit=100, lease=LEASE, token=fresh_token())
            batch = [
                Settlement(each, Dead("test") if at % 2 else Retry())
                for at, each in enumerate(found.deliveries)
            ]
            return lambda store: store.settle(batch)

        await self.all_or_nothing(harness, scene, running, {0, ALL})

    async def test_a_cancelled_renewal_loses_no_lease(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            await fill(store)
            found = await store.claim(QUEUES, limit=100, lease=LEASE, token=fresh_token())
            return lambda store: store.extend(found.deliveries, 2 * LEASE)

        await self.all_or_nothing(harness, scene, running, {ALL})

    async def test_a_cancelled_cancel_removed_its_message_or_not(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            await store.publish(timer("reminder"))
            return lambda store: store.cancel(QUEUE, "reminder")

        await self.all_or_nothing(harness, scene, waiting, {0, 1})

    async def test_a_cancelled_cancel_all_removed_all_or_nothing(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            await store.publish_batch([message() for _ in range(ALL)])
            return lambda store: store.cancel_all(QUEUE)

        await self.all_or_nothing(harness, scene, waiting, {0, ALL})

    async def test_a_cancelled_reschedule_keeps_its_message(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            await store.publish(timer("reminder"))
            return lambda store: store.reschedule(QUEUE, "reminder", timedelta(hours=1))

        await self.all_or_nothing(harness, scene, waiting, {1})

    async def test_a_cancelled_redrive_leaves_each_letter_in_one_place(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            await bury_some(store)
            letters = await store.dead(DeadFilter(), limit=100)
            return lambda store: store.redrive(letters, to="elsewhere")

        async def look(store: FullStore) -> int:
            moved = await waiting(store)
            assert moved + len(await store.dead(DeadFilter(), limit=100)) == ALL
            return moved

        await self.all_or_nothing(harness, scene, look, {0, ALL})

    async def test_a_cancelled_purge_deleted_all_or_nothing(self, harness: Harness) -> None:
        async def scene(store: FullStore) -> Verb:
            await bury_some(store)
            return lambda store: store.purge(DeadFilter(), limit=100)

        async def look(store: FullStore) -> int:
            return len(await store.dead(DeadFilter(), limit=100))

        await self.all_or_nothing(harness, scene, look, {0, ALL})


async def fill(store: FullStore) -> None:
    """A few messages in each queue."""
    await store.publish_batch([message(queue=queue) for queue in QUEUES for _ in range(EACH)])


async def bury_some(store: FullStore) -> None:
    """A few dead letters of each queue."""
    await fill(store)
    found = await store.claim(QUEUES, limit=100, lease=LEASE, token=fresh_token())
    await store.settle([Settlement(each, Dead("test")) for each in found.deliveries])


async def waiting(store: FullStore) -> int:
    return len(await store.peek(limit=100))


async def running(store: FullStore) -> int:
    return sum(stats.running for stats in (await store.stats()).values())


async def empty(store: FullStore) -> None:
    """Remove all messages and dead letters."""
    for queue in await store.stats():
        await store.cancel_all(queue)
    await store.purge(DeadFilter(), limit=1000)
