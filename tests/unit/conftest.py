"""A store whose clock is ours, behind a connection that can fail; and an observer of the worker."""

from __future__ import annotations

import pytest

from nightmail.stores.memory import MemoryData, MemoryStore
from nightmail.testing.clock import ManualClock
from tests.unit.faulty import FaultyStore
from tests.unit.support import Seen


@pytest.fixture
def clock() -> ManualClock:
    """The store's time; it stands still until moved."""
    return ManualClock()


@pytest.fixture
def data() -> MemoryData:
    """What all stores of a test share, as processes share a database."""
    return MemoryData()


@pytest.fixture
def store(data: MemoryData, clock: ManualClock) -> FaultyStore:
    """A store over this data."""
    return FaultyStore(MemoryStore(data, clock=clock))


@pytest.fixture
def seen() -> Seen:
    """Watches the worker it is given to."""
    return Seen()


@pytest.fixture
def far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker fetches a hundred messages ahead, however fast this machine runs its handlers."""
    monkeypatch.setattr("nightmail.engine.prefetch.Prefetch.ahead", lambda pace, now: 100)
