"""What a scenario has: an open store, the ways into its database, and words to write a scenario in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar, Unpack
from uuid import UUID

from nightmail.errors import CannotJoin
from nightmail.message import Delivery, Message
from nightmail.outcome import Dead, Outcome, WriteResult
from nightmail.store import Blocking, FullStore, Settlement
from nightmail.testing.conformance import Harness
from nightmail.testing.conformance.build import MessageOptions
from tests.golden.record import Record, RoundTrip

T = TypeVar("T")

LEASE: Final = timedelta(seconds=30)
SECOND: Final = timedelta(seconds=1)
HOUR: Final = timedelta(hours=1)
REJECTED: Final = Dead("rejected", "ValueError: no")
CALLER: Final = "caller"


@dataclass(frozen=True, slots=True)
class Database:
    """An empty one: how stores are made for it, and what callers may pass as their transaction."""

    harness: Harness
    transaction: Callable[[], AbstractAsyncContextManager[Any]]
    acknowledging: Callable[[FullStore, Sequence[Delivery]], AbstractAsyncContextManager[Any]] | None = None
    """Where a message is acknowledged only in a transaction that the store makes."""
    by_the_servers_clock: Callable[[], FullStore] | None = None
    """Where the statements of a store without a clock of its own are others."""
    rehearsed: bool = True
    """Whether the first time costs more."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a scenario cost."""

    title: str
    trips: Sequence[RoundTrip]
    refused: str = ""
    counted: bool = True
    """Whether the number of round trips is fixed: who listens may ask again and again."""


class Stage:
    """On a clock that stands still: how far a claim looks depends on the time since the last one."""

    def __init__(self, database: Database, record: Record, store: FullStore, name: str = "") -> None:
        self.database = database
        self.harness = database.harness
        self.clock = database.harness.clock
        self.store = store
        self.record = record
        self._name = name
        self.entries: list[Entry] = []
        self._title = ""
        self._queues = 0
        self._tokens = 0

    def begin(self, title: str) -> None:
        """A scenario begins, with a queue of its own."""
        self._title = title
        self._queues += 1

    # ---------------------------------------------------------------------------------- recording

    async def recorded(self, verb: Awaitable[T], title: str = "") -> T | None:
        """Do this, and note what it cost; nothing is returned when it was refused."""
        self.record.clear()
        refused = ""
        result: T | None = None
        try:
            result = await verb
        except CannotJoin as error:
            refused = type(error).__name__
        self.note(self.record.taken(), title=title, refused=refused)
        return result

    def note(
        self, trips: Sequence[RoundTrip], *, title: str = "", refused: str = "", counted: bool = True
    ) -> None:
        """An entry for the golden file."""
        self.entries.append(Entry(title or self._title, trips, refused, counted))

    # ------------------------------------------------------------------------------------- callers

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A caller's own."""
        with self.record.connections_for(CALLER):
            async with self.database.transaction() as own:
                yield own

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        """The same in synchronous code."""
        with self.record.connections_for(CALLER), self.harness.blocking() as own:
            yield own

    # -------------------------------------------------------------------------------------- words

    @property
    def queue(self) -> str:
        """The queue of this scenario."""
        return f"queue-{self._queues}{self._name}"

    def token(self) -> UUID:
        """One that was not used before."""
        self._tokens += 1
        return UUID(int=self._tokens)

    def message(self, **options: Unpack[MessageOptions]) -> Message:
        options.setdefault("queue", self.queue)
        return Message(body=b"hello", **options)

    async def publish(self, **options: Unpack[MessageOptions]) -> None:
        await self.store.publish(self.message(**options))

    async def publish_many(self, count: int, **options: Unpack[MessageOptions]) -> None:
        await self.store.publish_batch([self.message(**options) for _ in range(count)])

    async def claim(self, *queues: str, limit: int = 10) -> list[Delivery]:
        claimed = await self.store.claim(queues or [self.queue], limit=limit, lease=LEASE, token=self.token())
        return list(claimed.deliveries)

    async def claimed(self, count: int = 1, **options: Unpack[MessageOptions]) -> list[Delivery]:
        """So many messages, published and claimed."""
        await self.publish_many(count, **options)
        deliveries = await self.claim(limit=count)
        assert len(deliveries) == count
        return deliveries

    async def claim_dead(self, limit: int = 10) -> list[Delivery]:
        claimed = await self.store.claim_dead([self.queue], limit=limit, lease=LEASE, token=self.token())
        return list(claimed.deliveries)

    async def died(self, count: int = 1, **options: Unpack[MessageOptions]) -> None:
        """So many dead letters."""
        await self.settle(await self.claimed(count, **options), REJECTED)

    async def letters(self, count: int = 1) -> list[Delivery]:
        """So many dead letters, claimed."""
        await self.died(count)
        letters = await self.claim_dead()
        assert len(letters) == count
        return letters

    async def settle(self, deliveries: Sequence[Delivery], *outcomes: Outcome) -> list[WriteResult]:
        """All with one outcome, or each with its own."""
        ends = outcomes if len(outcomes) > 1 else outcomes * len(deliveries)
        return await self.store.settle([Settlement(*each) for each in zip(deliveries, ends, strict=True)])
