"""What the engine's tests share: hearing what a worker did instead of sleeping until it may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import uuid4

from hypothesis import settings

from nightmail.engine.worker import Worker
from nightmail.message import Delivery, Message
from nightmail.observe import Observer
from nightmail.outcome import Outcome
from nightmail.store import FullStore, Settlement

QUEUE: Final = "mail"
PATIENCE: Final = 90.0
"""How long a test waits for what must happen before it fails."""
NOON: Final = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)

Result = TypeVar("Result")

brisk: Final = settings(max_examples=50, deadline=None)
"""For properties that are checked in passing: enough examples to notice a change, on any machine."""


class Seen(Observer):
    """Remembers what happened, and lets a test wait for it."""

    def __init__(self) -> None:
        self.claims: list[Sequence[Delivery]] = []
        self.runs: list[int] = []
        self.failures: list[tuple[int, BaseException]] = []
        self.broken_policies: list[tuple[int, Exception]] = []
        self.writes: list[Sequence[Settlement]] = []
        self.dropped: list[int] = []
        self.lost: list[int] = []
        self.uncertainties: list[Settlement] = []
        self.wakes = 0
        self.outages: list[tuple[Exception, timedelta]] = []
        self.recoveries = 0
        self.left: list[int] = []
        self._news = asyncio.Event()

    def claimed(self, deliveries: Sequence[Delivery]) -> None:
        self.claims.append(deliveries)
        self._news.set()

    def started(self, delivery: Delivery) -> None:
        self.runs.append(delivery.id)
        self._news.set()

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        self.failures.append((delivery.id, error))
        self._news.set()

    def policy_failed(self, delivery: Delivery, error: Exception) -> None:
        self.broken_policies.append((delivery.id, error))
        self._news.set()

    def settled(self, settlements: Sequence[Settlement]) -> None:
        self.writes.append(settlements)
        self._news.set()

    def superseded(self, delivery: Delivery) -> None:
        self.dropped.append(delivery.id)
        self._news.set()

    def lease_lost(self, delivery: Delivery) -> None:
        self.lost.append(delivery.id)
        self._news.set()

    def uncertain(self, settlement: Settlement) -> None:
        self.uncertainties.append(settlement)
        self._news.set()

    def woken(self) -> None:
        self.wakes += 1
        self._news.set()

    def store_unavailable(self, error: Exception, retry_in: timedelta) -> None:
        self.outages.append((error, retry_in))
        self._news.set()

    def store_recovered(self) -> None:
        self.recoveries += 1
        self._news.set()

    def drained(self, left: int) -> None:
        self.left.append(left)
        self._news.set()

    @property
    def outcomes(self) -> list[tuple[int, Outcome]]:
        """Which message ended how, in the order in which the store wrote it."""
        return [(each.delivery.id, each.outcome) for write in self.writes for each in write]

    def of(self, message_id: int) -> list[Outcome]:
        """How the deliveries of this message ended, in order."""
        return [outcome for id_, outcome in self.outcomes if id_ == message_id]

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait until that is so."""
        async with asyncio.timeout(PATIENCE):
            while not happened():
                self._news.clear()
                await self._news.wait()

    async def until_settled(self, count: int) -> None:
        """Wait until so many deliveries were settled."""
        await self.until(lambda: sum(map(len, self.writes)) >= count)


class Handler:
    """A handler that a test can hold, and that counts how many of it run at once."""

    def __init__(self, *, held: bool = False) -> None:
        self.deliveries: list[Delivery] = []
        self.running = 0
        self.most = 0
        self.cancelled = 0
        self._changed = asyncio.Condition()
        self._let_go = asyncio.Event()
        if not held:
            self._let_go.set()

    async def __call__(self, delivery: Delivery) -> Outcome | None:
        self.deliveries.append(delivery)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with self._changed:
                self._changed.notify_all()
            await self._let_go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return None

    def let_go(self) -> None:
        """Let those that run, and all that come, end."""
        self._let_go.set()

    async def until_running(self, count: int) -> None:
        """Wait until so many run at once."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: self.running >= count)


async def publish(store: FullStore, count: int = 1, **fields: Any) -> list[int]:
    """Publish so many messages, with their numbers from 0 as bodies; their ids."""
    return await store.publish_batch(
        [Message(**{"queue": QUEUE, "body": b"%d" % number} | fields) for number in range(count)]
    )


async def publish_timer(store: FullStore, timer_id: str, **fields: Any) -> int | None:
    """Publish one message under a name."""
    return await store.publish(Message(**{"queue": QUEUE, "body": b""} | fields, timer_id=timer_id))


async def take(store: FullStore, limit: int = 1, lease: timedelta = MINUTE) -> Sequence[Delivery]:
    """Claim as another process would."""
    return (await store.claim([QUEUE], limit=limit, lease=lease, token=uuid4())).deliveries


@asynccontextmanager
async def at_work(*workers: Worker) -> AsyncIterator[None]:
    """These workers, running; stopped at the end."""
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(PATIENCE):
                for worker in workers:
                    await worker.stop()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=PATIENCE)
    for task in tasks:
        task.result()


async def soon(waiting: Awaitable[Result]) -> Result:
    """The result of what must not take long."""
    async with asyncio.timeout(PATIENCE):
        return await waiting


async def a_few_steps() -> None:
    """Let everything that could go on without time passing go on."""
    for _ in range(50):
        await asyncio.sleep(0)


def ids(deliveries: Iterable[Delivery]) -> list[int]:
    """Which messages these are."""
    return [delivery.id for delivery in deliveries]


def delivery(**fields: Any) -> Delivery:
    """A delivery as a store could have made it."""
    plain: dict[str, Any] = {
        "id": 1,
        "token": uuid4(),
        "queue": QUEUE,
        "body": b"",
        "encoded_headers": "{}",
        "timer_id": None,
        "ordering_key": None,
        "priority": 0,
        "due_at": NOON,
        "published_at": NOON,
        "claimed_at": NOON,
        "expires_at": None,
        "attempts": 0,
        "deliveries": 1,
        "first_attempt_at": None,
        "last_attempt_at": None,
        "superseded": False,
    }
    return Delivery(**plain | fields)
