"""The model agrees with itself: a second memory store answers as the first does."""

from __future__ import annotations

import pytest

from tests.model.machine import run_model
from tests.stores.memory.support import MemoryHarness

pytestmark = pytest.mark.memory


def test_memory_answers_as_the_memory_store_does() -> None:
    run_model(MemoryHarness)
