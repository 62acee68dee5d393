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
    """The store under test, its clock, and a second process; all from the harness, which is to be overridden.

    With one part of the suite beside it, that part runs alone: for a second way into the same database.
    """

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def harness(self) -> Harness:
        """The way into an empty database of the store's kind; cleaned up by whoever overrides this."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture `harness`")

    @pytest.fixture
    def clock(self, harness: Harness) -> ManualClock:
        """The clock by which every store of this test goes."""
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
        """A second store over the same data, as another process would have it."""
        other = await harness.open()
        try:
            yield other
        finally:
            await other.close()

    @pytest.fixture
    def sender(self, store: FullStore, other: FullStore) -> FullStore:
        """Who writes when `store` listens: another process where that is pushed to the listener, else itself."""
        return other if store.capabilities.pushes_wakeups else store
