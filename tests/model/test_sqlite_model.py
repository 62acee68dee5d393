"""Whatever is done in whatever order, the SQLite store answers as the memory store does."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from nightmail.stores import _marks
from tests.model.machine import run_model
from tests.stores.sqlite.support import SQLAlchemyHarness

pytestmark = pytest.mark.sqlite


def test_sqlite_answers_as_the_memory_store_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    # A full claim may pass over what became available late, for a second. The memory store never does.
    monkeypatch.setattr(_marks, "LOOK_BEHIND_EVERY", 0.0)

    def harness() -> SQLAlchemyHarness:
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        return SQLAlchemyHarness(directory)

    run_model(harness)
