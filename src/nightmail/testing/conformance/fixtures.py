"""The fixtures every part of the suite is written against."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from nightmail.store import FullStore
from nightmail.testing.clock import ManualClock
from nightmail.testing.conformance.build import listens
from nightmail.testing.conformance.harness import Harness


class StoreFixtures:
    """The store under test, its clock, and a second process; all from `harness`, which a subclass overrides.

    Inherited together with one part of the suite, it runs that part alone: for a second driver of the same database.
    """

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def harness(self) -> Harness:
        """Access to an empty database of the store's kind; the override cleans it up."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture `harness`")

    @pytest.fixture
    def clock(self, harness: Harness) -> ManualClock:
        """The clock that every store of this test uses."""
        return harness.clock

    @pytest_asyncio.fixture
    async def store(self, harness: Harness, request: pytest.FixtureRequest) -> AsyncIterator[FullStore]:
        """The store under test, open and empty."""
        if not harness.wakeups and listens(request.function):
            pytest.skip("no wake-ups arrive on this way to the store")
        store = await harness.open()
        try:
            for capability in getattr(request.function, "needs", ()):
                if not getattr(store.capabilities, capability):
                    pytest.skip(f"{store.capabilities.name}: no {capability}")
            yield store
        finally:
            await store.close()

    @pytest_asyncio.fixture
    async def other(self, harness: Harness, store: FullStore) -> AsyncIterator[FullStore]:
        """A second store over the same data, as in another process."""
        other = await harness.open()
        try:
            yield other
        finally:
            await other.close()

    @pytest.fixture
    def sender(self, store: FullStore, other: FullStore) -> FullStore:
        """The store that writes while `store` listens: another process if wake-ups are pushed, else `store` itself."""
        return other if store.capabilities.pushes_wakeups else store
