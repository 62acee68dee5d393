"""What the broker's tests share: durations and stores, and hearing what the engine did, instead of sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import pytest

from nightmail import ConstantRetry, Delivery, OutboxBroker
from nightmail.observe import Observer
from nightmail.outcome import Outcome
from nightmail.store import Settlement

PATIENCE: Final = 90.0

MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
AT_ONCE: Final = ConstantRetry(delay=0, jitter=0)
IN_A_MINUTE: Final = ConstantRetry(delay=MINUTE, jitter=0)

in_memory = pytest.mark.parametrize("url", ["memory"], indirect=True)
on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
on_sql = pytest.mark.parametrize("url", ["sqlite", "postgres", "mysql"], indirect=True)
one_or_many = pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])


class Heard(Observer):
    """Remembers how deliveries ended and lets a test wait for it."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[int, Outcome]] = []
        self.errors: list[str] = []
        self.lost: list[int] = []
        self.acked: list[int] = []
        self.uncertainties: list[int] = []
        self._news = asyncio.Event()

    def settled(self, settlements: Sequence[Settlement]) -> None:
        self.outcomes += [(settled.delivery.id, settled.outcome) for settled in settlements]
        self._news.set()

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        self.errors.append(type(error).__name__)
        self._news.set()

    def lease_lost(self, delivery: Delivery) -> None:
        self.lost.append(delivery.id)
        self._news.set()

    def acked_in_transaction(self, delivery: Delivery) -> None:
        self.acked.append(delivery.id)
        self._news.set()

    def uncertain(self, settlement: Settlement) -> None:
        self.uncertainties.append(settlement.delivery.id)
        self._news.set()

    def of(self, message_id: int | None) -> list[Outcome]:
        """How the deliveries of this message ended, in order."""
        return [outcome for heard, outcome in self.outcomes if heard == message_id]

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait until that is so."""
        async with asyncio.timeout(PATIENCE):
            while not happened():
                self._news.clear()
                await self._news.wait()


async def soon(event: asyncio.Event) -> None:
    """Wait for an event of a handler's."""
    async with asyncio.timeout(PATIENCE):
        await event.wait()


@asynccontextmanager
async def started(broker: OutboxBroker) -> AsyncIterator[OutboxBroker]:
    """The broker, with its subscribers running."""
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def publish(broker: OutboxBroker, *bodies: Any) -> list[int]:
    """Publish these to `q`, before any worker looks."""
    async with broker:
        return await broker.publish_batch(*bodies, queue="q")


Make = Callable[..., OutboxBroker]
Options = dict[str, Any]
