"""The memory store keeps the contract."""

from __future__ import annotations

import pytest

from nightmail.testing.conformance import Harness, StoreConformance
from tests.stores.memory.support import MemoryHarness

pytestmark = pytest.mark.memory


class TestMemory(StoreConformance):
    @pytest.fixture
    def harness(self) -> Harness:
        return MemoryHarness()
