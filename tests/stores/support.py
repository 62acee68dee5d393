"""What tests of every store say: open one, claim, settle, wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar, Unpack

from nightmail.message import Delivery
from nightmail.outcome import Dead, Done, Outcome, WriteResult
from nightmail.records import DeadFilter, DeadLetter
from nightmail.store import FullStore, Settlement
from nightmail.testing.conformance import StoreConformance
from nightmail.testing.conformance.build import QUEUE, Capability, MessageOptions, claim_all, message

AnyStore = TypeVar("AnyStore", bound=FullStore)

EVERYTHING = DeadFilter()


@asynccontextmanager
async def opened(store: AnyStore, *, migrate: bool = True) -> AsyncIterator[AnyStore]:
    """This store, open, and migrated unless told otherwise."""
    await store.open()
    try:
        if migrate:
            await store.migrate()
        yield store
    finally:
        await store.close()


async def claim(store: FullStore, *, limit: int = 10, queue: str = QUEUE) -> list[Delivery]:
    return await claim_all(store, queue, limit=limit)


async def settle(store: FullStore, deliveries: Iterable[Delivery], outcome: Outcome) -> list[WriteResult]:
    """Settle all of these in the same way."""
    return await store.settle([Settlement(delivery, outcome) for delivery in deliveries])


async def done(store: FullStore, deliveries: Iterable[Delivery]) -> list[WriteResult]:
    return await settle(store, deliveries, Done())


async def bury(store: FullStore, *bodies: bytes, **options: Unpack[MessageOptions]) -> list[DeadLetter]:
    """Let messages with these bodies die one after the other; their dead letters, in this order."""
    queue = options.get("queue", QUEUE)
    for body in bodies:
        await store.publish(message(body, **options))
        assert await settle(store, await claim(store, queue=queue), Dead("rejected")) == [WriteResult.WRITTEN]
    return (await store.dead(DeadFilter(queue=queue), limit=len(bodies)))[::-1]


async def until(condition: Callable[[], bool | Awaitable[bool]], *, within: float = 20.0) -> None:
    """Return once this holds; it takes long only when it fails."""
    async with asyncio.timeout(within):
        while True:
            holds = condition()
            if await holds if isinstance(holds, Awaitable) else holds:
                return
            await asyncio.sleep(0.01)


def only_those_that_need(suite: type[StoreConformance], *capabilities: Capability) -> None:
    """Leave out of this suite what needs none of these: it is the same with every other caller."""
    for name in dir(suite):
        needed = getattr(getattr(suite, name), "needs", ())
        if name.startswith("test_") and not set(capabilities) & set(needed):
            setattr(suite, name, None)
