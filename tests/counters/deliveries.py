"""What the engine and the broker do with a message between its claim and its settlement: the same on every store.

A hundred messages are claimed at once, and settled when all are handled; and the clock is not the machine's. So neither
batches nor pauses depend on how fast that is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Final
from uuid import UUID

from nightmail import Delivery, Message, OutboxBroker, Worker
from nightmail.engine.attempt import Batched, Handler
from nightmail.engine.settings import WorkerSettings
from nightmail.limits import CLAIM_BYTES
from nightmail.outcome import WriteResult
from nightmail.store import Claimed, Settlement
from nightmail.stores.memory import MemoryStore
from tests.counters.clocks import same_on_every_machine
from tests.counters.functions import Functions
from tests.counters.verbs import BATCH, BODY, MANY

PATIENCE: Final = 60.0


class Once(MemoryStore):
    """Gives out all there is with one claim, and counts until all of it was handled."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self._functions = functions
        self._counting = ExitStack()
        self._given_out = False
        self._left = BATCH
        self.all_handled = asyncio.Event()

    def handled(self, messages: int = 1) -> None:
        """The handler says that it has done its work."""
        self._left -= messages
        if not self._left:
            self.all_handled.set()

    async def claim(
        self,
        queues: Sequence[str],
        *,
        limit: int,
        lease: timedelta,
        token: UUID,
        max_bytes: int = CLAIM_BYTES,
    ) -> Claimed:
        if self._given_out:
            return Claimed([], None)
        claimed = await super().claim(queues, limit=limit, lease=lease, token=token, max_bytes=max_bytes)
        assert len(claimed.deliveries) == BATCH
        self._given_out = True
        self._counting.enter_context(self._functions.counting())
        return claimed

    async def settle(self, settlements: Sequence[Settlement]) -> list[WriteResult]:
        await self.all_handled.wait()
        self._counting.close()
        return await super().settle(settlements)


async def typed(store: Once) -> None:
    """A handler of FastStream's, with arguments."""
    broker = OutboxBroker(store, logger=None, max_workers=BATCH)

    @broker.subscriber(MANY)
    async def handle(order: int, item: str, to: str, express: bool) -> None:
        store.handled()

    await _started(broker, store)


async def typed_batches(store: Once) -> None:
    """A handler of FastStream's that takes a list."""
    broker = OutboxBroker(store, logger=None, max_workers=1)

    @broker.subscriber(MANY, batch=True, max_batch=BATCH)
    async def handle(orders: list[dict[str, object]]) -> None:
        store.handled(len(orders))

    await _started(broker, store)


async def plain(store: Once) -> None:
    """A handler of the engine's."""

    async def handle(delivery: Delivery) -> None:
        store.handled()

    await _worked(store, handle, max_workers=BATCH)


async def plain_batches(store: Once) -> None:
    """A handler of the engine's that takes a list."""

    async def handle(deliveries: Sequence[Delivery]) -> None:
        store.handled(len(deliveries))

    await _worked(store, Batched(handle, BATCH), max_workers=1)


KINDS: Final[dict[str, Callable[[Once], Awaitable[None]]]] = {
    "delivery, typed handler": typed,
    "delivery, typed handler of batches": typed_batches,
    "delivery, handler of the engine": plain,
    "delivery, handler of the engine of batches": plain_batches,
}


async def delivered(functions: Functions) -> dict[str, dict[str, float]]:
    """What each kind of handler costs, per message."""
    costs: dict[str, dict[str, float]] = {}
    for name, kind in KINDS.items():
        # The first warms up.
        for _ in range(2):
            store = Once(functions)
            await store.publish_batch([Message(queue=MANY, body=json.dumps(BODY).encode())] * BATCH)
            with same_on_every_machine():
                async with asyncio.timeout(PATIENCE):
                    await kind(store)
        costs[name] = {counter: round(value / BATCH, 3) for counter, value in functions.found.items()}
    return costs


async def _started(broker: OutboxBroker, store: Once) -> None:
    async with broker:
        await broker.start()
        await store.all_handled.wait()


async def _worked(store: Once, handler: Handler | Batched, *, max_workers: int) -> None:
    worker = Worker(store, handler, queues=[MANY], settings=WorkerSettings(max_workers=max_workers))
    await worker.run_until_idle()
