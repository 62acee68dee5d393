"""The memory store keeps the contract; and what only it has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nightmail.stores.memory import MemoryData, MemoryStore, MemoryTransaction
from nightmail.testing.conformance import Harness, StoreConformance

pytestmark = pytest.mark.memory


class MemoryHarness(Harness):
    """Stores over one `MemoryData`; the caller's own rows are a list of the harness."""

    def __init__(self) -> None:
        super().__init__()
        self.data = MemoryData()
        self._committed: list[str] = []
        self._uncommitted: dict[MemoryTransaction, list[str]] = {}

    async def open(self) -> MemoryStore:
        store = MemoryStore(self.data, clock=self.clock)
        await store.migrate()
        await store.open()
        return store

    @asynccontextmanager
    async def transaction(self, *, repeatable_read: bool = False) -> AsyncIterator[MemoryTransaction]:
        rows: list[str] = []
        async with self.data.transaction() as transaction:
            self._uncommitted[transaction] = rows
            yield transaction
        self._committed += rows

    async def write(self, transaction: MemoryTransaction, value: str) -> None:
        self._uncommitted[transaction].append(value)

    async def written(self) -> list[str]:
        return sorted(self._committed)

    @asynccontextmanager
    async def outside_any_transaction(self) -> AsyncIterator[MemoryTransaction]:
        async with self.data.transaction() as transaction:
            pass
        yield transaction


class TestMemory(StoreConformance):
    @pytest.fixture
    def harness(self) -> Harness:
        return MemoryHarness()
