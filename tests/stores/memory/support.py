"""The harness that drives the memory store through the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from nightmail.limits import MAX_BODY_BYTES
from nightmail.store import Blocking, FullStore
from nightmail.stores.memory import MemoryData, MemoryStore, MemoryTransaction
from nightmail.testing.conformance import Harness


class MemoryHarness(Harness):
    """Stores over one `MemoryData`. The caller's own rows are a list, written when the transaction commits."""

    def __init__(self) -> None:
        super().__init__()
        self.data = MemoryData()
        self._committed: list[str] = []
        self._uncommitted: dict[MemoryTransaction, list[str]] = {}

    async def open(self, *, keep_delivered: bool = False, max_body_bytes: int = MAX_BODY_BYTES) -> FullStore:
        store = MemoryStore(
            self.data, clock=self.clock, keep_delivered=keep_delivered, max_body_bytes=max_body_bytes
        )
        await store.migrate()
        await store.open()
        return store

    def unopened(self) -> FullStore:
        return MemoryStore(self.data, clock=self.clock)

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        with self.data.sync_transaction() as transaction:
            yield Blocking(transaction)

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[MemoryTransaction]:
        rows: list[str] = []
        async with self.data.transaction() as transaction:
            self._uncommitted[transaction] = rows
            yield transaction
        self._committed += rows

    async def write(self, transaction: Any, value: str) -> None:
        self._uncommitted[transaction].append(value)

    async def written(self) -> list[str]:
        return sorted(self._committed)

    @asynccontextmanager
    async def outside_any_transaction(self) -> AsyncIterator[MemoryTransaction]:
        async with self.data.transaction() as transaction:
            pass
        yield transaction
