"""Whatever is done in whatever order, the SQLite store answers as the memory store does."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tests.model.machine import run_model
from tests.stores.sqlite.support import SQLAlchemyHarness

pytestmark = pytest.mark.sqlite


def test_sqlite_answers_as_the_memory_store_does(tmp_path: Path) -> None:
    numbers = count()

    def harness() -> SQLAlchemyHarness:
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        return SQLAlchemyHarness(directory)

    run_model(harness)
